package main

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModesAsLsWritesThem: programs and people know these letters from ls.
func TestModesAsLsWritesThem(t *testing.T) {
	require.Equal(t, "lrwxrwxrwx", modeString(fs.ModeSymlink|0o777))
	require.Equal(t, "drwxr-xr-x", modeString(fs.ModeDir|0o755))
	require.Equal(t, "-rw-r--r--", modeString(0o644))
}
