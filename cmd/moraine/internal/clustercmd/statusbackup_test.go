package clustercmd

import (
	"strings"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// TestStatusSaysTheBackupHorizon: the status shows what is kept for backups apart from what
// waits for deletion. It warns of a newest backup that is older than what is kept.
func TestStatusSaysTheBackupHorizon(t *testing.T) {
	hours := func(n uint64) uint64 { return n * 3600_000 }
	for name, row := range map[string]struct {
		horizon, now, age uint64 // hours
		note, finding     string
	}{
		"whole":    {24, 24, 5, "kept for backups: 3.0 GiB that no file names any more; a backup restores everything if it is no older than 24h0m0s", ""},
		"shorter":  {24, 8, 5, "no older than 8h0m0s of 24h0m0s, as full devices freed what died before", ""},
		"too old":  {24, 4, 5, "no older than 4h0m0s of 24h0m0s", "the newest backup of the metadata is 5h0m0s old, and what died more than 4h0m0s ago is not kept"},
		"not kept": {0, 0, 5, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := judge(&wire.ClusterReply{KeptBytes: 3 << 30, PendingBytes: 5, BackupHorizonMillis: hours(row.horizon), BackupHorizonNowMillis: hours(row.now),
				Backups: &wire.KeptBackups{Node: "m1", AgeMillis: int64(hours(row.age)), IntervalMillis: hours(6)}})
			require.EqualValues(t, 3<<30, s.KeptBytes)
			require.EqualValues(t, 5, s.PendingBytes)
			require.EqualValues(t, row.now*3600, s.HorizonNow)
			require.Equal(t, row.note != "", strings.Contains(strings.Join(s.Notes, "; "), "kept for backups"))
			require.Contains(t, strings.Join(s.Notes, "; "), row.note)
			require.Equal(t, row.finding != "", strings.Contains(strings.Join(s.Findings, "; "), "is not kept"))
			require.Contains(t, strings.Join(s.Findings, "; "), row.finding)
		})
	}
}
