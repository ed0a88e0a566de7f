package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestABackupTakesNoPlaceOfAnother: of two files that are to get one name, the second is
// refused, also where the name was free when it was begun.
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
