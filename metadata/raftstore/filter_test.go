package raftstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// After repeated failed searches a filter answers for a table. Whatever names are added and
// removed, in the same batch or before, and however often the filter is made again, existing keys
// are found.
func TestWhatIsThereIsFoundBehindAFilter(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	comeAndGo(t, random, func() string { return fmt.Sprintf("keytable-%02d/%04d", random.IntN(2), random.IntN(1500)) })
}

// Increasing numbers, as those of inodes, lie past the end of their table and need no search. Some
// are skipped and come later, some are removed and come again, and existing ones are found.
func TestWhatIsThereIsFoundBeforeAnEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	top := 0
	comeAndGo(t, random, func() string {
		if random.IntN(3) == 0 {
			top += 1 + random.IntN(3)
			return fmt.Sprintf("tab%08d", top)
		}
		return fmt.Sprintf("tab%08d%s", random.IntN(top+2), []string{"", "/of the table"}[random.IntN(2)])
	})
}

// comeAndGo looks for keys, sets those that are not there and deletes most that are.
func comeAndGo(t *testing.T, random *rand.Rand, key func() string) {
	s, err := raftstore.OpenStateForTest(vfs.NewMem(1), 1) // no records: each search is the database's, or is spared
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	there := map[string]string{}
	for entry := uint64(1); entry <= 300; entry++ {
		require.NoError(t, s.Apply(entry, func(kv kvtx.KV) error {
			for range 40 {
				name := key()
				value, ok, err := kv.Get([]byte(name))
				require.NoError(t, err)
				want, is := there[name]
				require.Equal(t, is, ok, "entry %d: %s", entry, name)
				require.Equal(t, want, string(value), "entry %d: %s", entry, name)
				switch {
				case !ok:
					there[name] = fmt.Sprint(name, " of ", entry)
					require.NoError(t, kv.Set([]byte(name), []byte(there[name])))
				case random.IntN(3) > 0:
					delete(there, name)
					require.NoError(t, kv.Delete([]byte(name)))
				}
			}
			return nil
		}))
	}
}
