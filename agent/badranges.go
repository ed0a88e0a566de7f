package agent

// A read that finds bytes corrupt or lost at one level gets them from the next, and succeeds. The trainer
// need not care, and its reply has nothing about it. So the agent tells the operator.

// reportBad logs and counts the bad ranges that reads of the open step have found since the last call.
func (c *conn) reportBad() {
	r := &c.restore
	bad := r.k.BadRanges()
	for _, b := range bad[r.bad:] {
		c.a.metrics.BadRanges.WithLabelValues(b.Level.String()).Inc()
		c.a.log.Warn("bad range of a step", "run", r.of.path, "attempt", r.k.Info.Attempt, "step", r.k.Info.Step,
			"file", b.File, "offset", b.Offset, "bytes", b.Bytes, "level", b.Level, "err", b.Err)
	}
	r.bad = len(bad)
}
