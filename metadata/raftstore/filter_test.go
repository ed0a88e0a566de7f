package raftstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
)

// What is searched for in vain again and again is told by a filter of its table.
// Whatever names come and go in the table, in the batch that looks or before it,
// and however often the filter is made anew, what is there is found.
func TestWhatIsThereIsFoundBehindAFilter(t *testing.T) {
	s, err := raftstore.OpenStateForTest(vfs.NewMem(1), 1) // no records: each search is the database's, or the filter's
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	random := rand.New(rand.NewPCG(7, 7))
	there := map[string]string{}
	key := func() string { return fmt.Sprintf("keytable-%02d/%04d", random.IntN(2), random.IntN(1500)) }
	for entry := uint64(1); entry <= 300; entry++ {
		require.NoError(t, s.Apply(entry, func(kv state.KV) error {
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
