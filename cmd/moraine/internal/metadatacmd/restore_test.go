package metadatacmd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRestoreSaysWhichHorizonItNeeds: a restore names the backup horizon that the backup
// needs, also of a backup whose time is in the future.
func TestRestoreSaysWhichHorizonItNeeds(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		age, horizon time.Duration
		want         string
	}{
		{5 * time.Hour, 24 * time.Hour, "needs a --backup-horizon of that"},
		{30 * time.Hour, 24 * time.Hour, "warning: the backup is 30h0m0s old, and --backup-horizon was 24h0m0s"},
		{time.Hour, 0, "kept nothing for backups"},
		{-time.Hour, 24 * time.Hour, "which is in the future"},
	} {
		require.Contains(t, horizonNeeded(now.Add(-row.age), row.horizon, now), row.want)
	}
}
