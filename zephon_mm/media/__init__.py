"""Media: header probes, frame sampling, pictures and pixels. Import the submodules."""
