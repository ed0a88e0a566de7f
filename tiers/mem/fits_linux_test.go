package mem

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCachedFilesOfAGroupAreNotInTheWay reads how much memory a container may still
// allocate. The page cache that a server left when it ended counts as free.
func TestCachedFilesOfAGroupAreNotInTheWay(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, limited := groupLeft(dir)
	require.False(t, limited, "the group does not exist")
	write("memory.max", "1000\n")
	write("memory.current", "900\n")
	left, limited := groupLeft(dir)
	require.True(t, limited)
	require.EqualValues(t, 100, left)
	write("memory.stat", "anon 250\nfile 650\ninactive_anon 50\nactive_anon 200\ninactive_file 400\nactive_file 200\nshmem 50\n")
	left, _ = groupLeft(dir)
	require.EqualValues(t, 700, left)
	write("memory.max", "max\n")
	_, limited = groupLeft(dir)
	require.False(t, limited)
}
