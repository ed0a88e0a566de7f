package filecmd

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
	require.Equal(t, "prw-r--r--", modeString(fs.ModeNamedPipe|0o644))
	require.Equal(t, "srw-r--r--", modeString(fs.ModeSocket|0o644))
	require.Equal(t, "crw-r--r--", modeString(fs.ModeDevice|fs.ModeCharDevice|0o644))
	require.Equal(t, "brw-r--r--", modeString(fs.ModeDevice|0o644))
}

func TestWhereAFileIsKeptIsSaidInWords(t *testing.T) {
	for want, e := range map[string]entry{
		"nowhere: it is empty":                                        {},
		"on the chunkservers":                                         {Size: 10, Stored: 10},
		"on the chunkservers and in the object tier":                  {Size: 10, Stored: 10, Clean: true},
		"in the object tier (evicted from the chunkservers)":          {Size: 10, Clean: true, Evicted: true},
		"on the chunkservers, and some of it only in the object tier": {Size: 10, Stored: 10, Evicted: true},
	} {
		require.Equal(t, want, e.kept())
	}
}
