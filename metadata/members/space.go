package members

// LowSpaceOf reports whether the disk of a metadata server is nearly full: this server's own, or
// that of another one by its recent report.
func (g *Group) LowSpaceOf(id string) bool {
	if id == g.Node {
		return g.Store.LowSpace()
	}
	h, reported := g.news.of(id, g.Clock.Now())
	return reported && h.status.GetLowSpace()
}

// OutOfSpace reports whether nothing may grow. That is so if this server's disk is nearly full, or
// the disks of so many others that a majority would fill up.
func (g *Group) OutOfSpace() bool { return g.Store.LowSpace() || g.fullDisks.Load() }

// countFullDisks updates fullDisks from the reports of the other servers.
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
