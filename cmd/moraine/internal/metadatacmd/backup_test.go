package metadatacmd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestABackupTakesNoPlaceOfAnother: a second backup of the same name fails, also where the
// name was free when the command began.
func TestABackupTakesNoPlaceOfAnother(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "backup")
	for _, part := range []string{"first", "second"} {
		from := filepath.Join(dir, part)
		require.NoError(t, os.WriteFile(from, []byte(part), 0o600))
		err := giveName(from, name)
		if part == "first" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "is there already: a backup never takes the place of another")
		require.FileExists(t, from)
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	require.NoFileExists(t, filepath.Join(dir, "first"))
}

// TestRestoreSaysWhatIsAcceptedAgain: a restore says that the cluster accepts certificates
// again that were revoked after the backup.
func TestRestoreSaysWhatIsAcceptedAgain(t *testing.T) {
	text := revokedSince(time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC))
	require.Contains(t, text, "revoked after 2026-11-24T12:00:00Z is accepted again")
	require.Contains(t, text, "moraine cert revoke")
}
