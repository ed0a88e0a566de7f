package members

// LowSpaceOf reports whether the disk of a metadata server is nearly full: this
// one's own, or another's that said so lately.
func (g *Group) LowSpaceOf(id string) bool {
	if id == g.Node {
		return g.Store.LowSpace()
	}
	h, heard := g.news.of(id, g.Clock.Now())
	return heard && h.status.GetLowSpace()
}

// OutOfSpace reports whether nothing may grow: the disk of this server is nearly full,
// or those of so many others that a majority would go with them.
func (g *Group) OutOfSpace() bool { return g.Store.LowSpace() || g.fullDisks.Load() }

// countFullDisks keeps what crowded says of the others.
func (g *Group) countFullDisks() {
	voters, roomy := 0, 0
	for _, m := range g.Store.Members() {
		if !m.Voter {
			continue
		}
		voters++
		if !g.LowSpaceOf(m.ID) {
			roomy++
		}
	}
	g.fullDisks.Store(voters > 0 && roomy <= voters/2)
}
