"""What is seen: Streamlit pages over `db.queries`. Read-only, and free of torch, Ray and the engine."""
