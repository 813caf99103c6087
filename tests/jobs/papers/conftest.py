import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # small_sweeps, a helper of these tests
