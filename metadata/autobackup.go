package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/autobackup"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// overdueAfter is the time within which a new leader must make its first backup.
const overdueAfter = 2 * time.Minute

// backupDesk makes backups and serves them while this server leads.
type backupDesk struct {
	*lead.Term
	cfg     *Config
	kept    *autobackup.Backups // backups that the leader makes automatically
	backups *backups            // backups being read
	// leads reports whether this leadership is still in force.
	leads func() bool
}

// keepBackups makes automatic backups while this server leads, until ctx ends.
func (d *backupDesk) keepBackups(ctx context.Context) {
	if src, ok := d.Store.(snapshotter); ok {
		d.kept.Run(ctx, src, d.Cluster.Incarnation)
	}
}

// keptBackups describes them; nil if none are made.
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
	// A new leader makes one at once if there is no recent one.
	w.Overdue = st.Overdue(now) && now.Sub(d.Began) > overdueAfter
	return w
}

// measureBackups updates the gauges of backups.
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
