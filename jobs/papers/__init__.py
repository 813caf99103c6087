"""The claims of three papers as data, and what a database says to each: `tiercache report`.

2605.09490 (a four-tier hierarchy), 2606.26472 (EpiKV), 2608.05326 (QEvict).
"""
