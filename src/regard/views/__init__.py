"""What is shown, decided once (scene) and drawn several ways."""
