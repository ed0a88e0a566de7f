package mem

// Admits reports whether Run writes behind.
func (t *Tier) Admits() bool { return t.behind.admits() }
