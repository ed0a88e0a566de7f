package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/autobackup"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// overdueAfter is how long a new leader has for its first backup.
const overdueAfter = 2 * time.Minute

// backupDesk takes backups as long as this server leads, and hands them out.
type backupDesk struct {
	*lead.Term
	cfg     *Config
	kept    *autobackup.Backups // that are taken by themselves
	backups *backups            // that are read now
	// leads reports whether this leadership goes on.
	leads func() bool
}

// keepBackups takes backups by itself while this server leads, until ctx ends.
func (d *backupDesk) keepBackups(ctx context.Context) {
	if src, ok := d.Store.(snapshotter); ok {
		d.kept.Run(ctx, src, d.Cluster.Incarnation)
	}
}

// keptBackups says how that goes; nil where none are taken.
func (d *backupDesk) keptBackups() *wire.KeptBackups {
	now := d.Clock.Now()
	st, on := d.kept.Status()
	if !on {
		return nil
	}
	w := &wire.KeptBackups{Node: d.Node, Dir: st.Dir, IntervalMillis: uint64(st.Every.Milliseconds()), Bytes: uint64(st.Bytes), Kept: uint32(st.Kept)}
	if !st.Taken.IsZero() {
		w.AgeMillis = max(now.Sub(st.Taken).Milliseconds(), 1)
	}
	if st.Err != nil {
		w.Error = wire.Text(st.Err.Error(), wire.MaxText)
	}
	// A leader that has just begun takes one at once where none is fresh.
	w.Overdue = st.Overdue(now) && now.Sub(d.Began) > overdueAfter
	return w
}

// measureBackups keeps the gauges of backups.
func (d *backupDesk) measureBackups() {
	w := d.keptBackups()
	if w == nil {
		return
	}
	d.Metrics.BackupAge.Set(float64(w.AgeMillis) / 1000)
	d.Metrics.BackupBytes.Set(float64(w.Bytes))
	failed := 0.0
	if w.Error != "" {
		failed = 1
	}
	d.Metrics.BackupFailed.Set(failed)
}
