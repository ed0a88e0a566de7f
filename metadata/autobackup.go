package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// overdueAfter is how long a new leader has for its first backup.
const overdueAfter = 2 * time.Minute

// keepBackups takes backups by itself while this server leads, until ctx ends.
func (l *leader) keepBackups(ctx context.Context) {
	if src, ok := l.Store.(snapshotter); ok {
		l.server.kept.Run(ctx, src, l.Cluster.Incarnation)
	}
}

// keptBackups says how that goes; nil where none are taken.
func (l *leader) keptBackups() *wire.KeptBackups {
	now := l.Clock.Now()
	st, on := l.server.kept.Status()
	if !on {
		return nil
	}
	w := &wire.KeptBackups{Node: l.Node, Dir: st.Dir, IntervalMillis: uint64(st.Every.Milliseconds()), Bytes: uint64(st.Bytes), Kept: uint32(st.Kept)}
	if !st.Taken.IsZero() {
		w.AgeMillis = max(now.Sub(st.Taken).Milliseconds(), 1)
	}
	if st.Err != nil {
		w.Error = wire.Text(st.Err.Error(), wire.MaxText)
	}
	// A leader that has just begun takes one at once where none is fresh.
	w.Overdue = st.Overdue(now) && now.Sub(l.Began) > overdueAfter
	return w
}

// measureBackups keeps the gauges of backups.
func (l *leader) measureBackups() {
	w := l.keptBackups()
	if w == nil {
		return
	}
	l.Metrics.BackupAge.Set(float64(w.AgeMillis) / 1000)
	l.Metrics.BackupBytes.Set(float64(w.Bytes))
	failed := 0.0
	if w.Error != "" {
		failed = 1
	}
	l.Metrics.BackupFailed.Set(failed)
}
