package raftstore_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
)

// syncs are all syncs of a node, by site: "" if power cuts must show that it is missing, otherwise
// why they need not. An unlisted sync fails TestPowerCuts; one listed and not made fails
// TestEverySyncMatters.
var syncs = map[string]string{
	"sync /node/IDENTITY.new by form":                                                    "",
	"sync /node/PROBE by probeDisk":                                                      "nothing reads it: the sync is there to take its time before raft may start",
	"sync /node/log/META.new by metaStore.commit":                                        "",
	"sync /node/log/N-N.wal by repairTail":                                               "",
	"sync /node/log/N-N.wal by walFile.Sync":                                             "",
	"sync /node/snapshots/tmp-N/META by checkpointSink.publish":                          "",
	"sync /node/snapshots/tmp-N/db/MANIFEST-N by pebble":                                 "",
	"sync /node/snapshots/tmp-N/db/N.log by pebble":                                      "",
	"sync /node/snapshots/tmp-N/db/OPTIONS-N by pebble":                                  "",
	"sync /node/snapshots/tmp-N/db/marker.format-version.N.N by pebble":                  emptyFile,
	"sync /node/snapshots/tmp-N/db/marker.manifest.N.MANIFEST-N by pebble":               emptyFile,
	"sync /node/snapshots/tmp-N/db/MANIFEST-N by streamReader.extract":                   "",
	"sync /node/snapshots/tmp-N/db/N.log by streamReader.extract":                        flushed,
	"sync /node/snapshots/tmp-N/db/N.sst by streamReader.extract":                        "",
	"sync /node/snapshots/tmp-N/db/OPTIONS-N by streamReader.extract":                    "",
	"sync /node/snapshots/tmp-N/db/marker.format-version.N.N by streamReader.extract":    emptyFile,
	"sync /node/snapshots/tmp-N/db/marker.manifest.N.MANIFEST-N by streamReader.extract": emptyFile,
	"sync /node/state/CURRENT.new by stateDB.exchange":                                   "",
	"sync /node/state/CURRENT.new by stateDB.open":                                       "",
	"sync /node/state/db-N/MANIFEST-N by pebble":                                         "",
	"sync /node/state/db-N/MANIFEST-N by linkCheckpoint":                                 "",
	"sync /node/state/db-N/N.log by pebble":                                              "",
	"sync /node/state/db-N/N.log by linkCheckpoint":                                      flushed,
	"sync /node/state/db-N/N.sst by pebble":                                              "",
	"sync /node/state/db-N/OPTIONS-N by linkCheckpoint":                                  "",
	"sync /node/state/db-N/marker.format-version.N.N by linkCheckpoint":                  emptyFile,
	"sync /node/state/db-N/marker.manifest.N.MANIFEST-N by linkCheckpoint":               emptyFile,
	"sync /node/state/db-N/temporary.N.dbtmp by pebble":                                  "",
	"syncdir / by form":                                       "",
	"syncdir /node by form":                                   "",
	"syncdir /node/log by metaStore.commit":                   "",
	"syncdir /node/log by metaStore.open":                     "",
	"syncdir /node/log by walFile.Sync":                       "",
	"syncdir /node/snapshots by checkpointSink.publish":       "",
	"syncdir /node/snapshots by openSnapshots":                "",
	"syncdir /node/snapshots by snapshotStore.remove":         "",
	"syncdir /node/snapshots/tmp-N by checkpointSink.publish": "",
	"syncdir /node/snapshots/tmp-N by pebble":                 "checkpointSink.publish syncs the same directory, after pebble and before it gives it its name",
	"syncdir /node/snapshots/tmp-N/db by marker": "it orders two names for a cut between them, and a cut before the snapshot has its name removes both: " +
		"a last sync of pebble keeps them before",
	"syncdir /node/snapshots/tmp-N/db by pebble":               "",
	"syncdir /node/snapshots/tmp-N/db by streamReader.extract": "",
	"syncdir /node/state by machine.restore":                   "",
	"syncdir /node/state by pebble":                            "",
	"syncdir /node/state by stateDB.exchange":                  "pebble syncs the same directory when stateDB.openDB opens the new database, next, and the old one is removed after that",
	"syncdir /node/state by stateDB.open": "a first database without its CURRENT is removed, and made again from the snapshot and the log, " +
		"of which the log is cut off only behind the snapshot",
	"syncdir /node/state/db-N by marker":         "",
	"syncdir /node/state/db-N by pebble":         "",
	"syncdir /node/state/db-N by linkCheckpoint": "",
}

const (
	emptyFile = "the file is empty: its name says all, and the sync of the directory keeps that"
	flushed   = "a state is flushed before its snapshot is taken: what the snapshot's log has comes after " +
		"what the snapshot says it holds, and the replicated log has it"
)

// unlisted returns the sites that no table has.
func (c *siteCounts) unlisted() (out []string) {
	for _, s := range c.sorted() {
		if _, listed := syncs[s]; !listed {
			out = append(out, s)
		}
	}
	return out
}

// followed returns the sync that a history's cuts follow: each in turn.
func followed(seed uint64) string {
	all := slices.Sorted(maps.Keys(syncs))
	return all[seed%uint64(len(all))]
}

const lieVariable = "RAFTSTORE_LIE"

// TestEverySyncMatters leaves out one sync at a time and requires that the power cuts then break a
// promise.
func TestEverySyncMatters(t *testing.T) {
	if lie := os.Getenv(lieVariable); lie != "" {
		bite(t, lie)
		return
	}
	testseed.OnlyLong(t)
	var met siteCounts
	for i, s := range slices.Sorted(maps.Keys(syncs)) {
		for _, size := range []int{1, 3} {
			h := history{size: size, seed: uint64(i), follow: s, sites: &met}
			require.NoError(t, h.run(t))
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(syncs)), met.sorted(), "the syncs that are listed are those that are made")
	for _, s := range met.sorted() {
		t.Run(s, func(t *testing.T) {
			if why := syncs[s]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			t.Log(caught(t, s))
		})
	}
}

// bites is how many histories of each kind have a chance to miss a sync.
const bites = 200

// bite runs histories without a sync. It ends the process as soon as one of them
// breaks a promise.
func bite(t *testing.T, lie string) {
	first := testseed.From(t, 0)
	for seed := first; seed < first+bites; seed++ {
		bitten(fmt.Sprintf("in a log alone, seed %d", seed), logAfterKill(seed, lie, nil))
		bitten(fmt.Sprintf("in snapshots alone, seed %d", seed), snapshotsAfterKill(seed, lie))
		overTheRemains(t, seed, lie)                                  //nolint:errcheck // it ends the process
		aroundASnapshot(t, seed, lie, lie)                            //nolint:errcheck
		aroundARestore(t, seed, lie, lie)                             //nolint:errcheck
		(&history{size: 1, seed: seed, follow: lie, lie: lie}).run(t) //nolint:errcheck
		(&history{size: 3, seed: seed, follow: lie, lie: lie}).run(t) //nolint:errcheck
	}
}

// bitten ends a process of bite if err is a broken promise. It is called within
// the bubble.
func bitten(what string, err error) {
	if err != nil && os.Getenv(lieVariable) != "" {
		fmt.Printf("CAUGHT %s: %v\n", what, err)
		os.Exit(3)
	}
}

// caught runs bite in a process of its own: a broken promise may show as a
// panic. It returns what was broken.
func caught(t *testing.T, lie string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // a bound for a hang, not for a slow machine
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEverySyncMatters$", "-test.timeout=30m")
	cmd.Env = append(os.Environ(), lieVariable+"="+lie)
	out, err := cmd.CombinedOutput()
	require.NoError(t, ctx.Err(), "%.2000s", out)
	require.Error(t, err, "no power cut showed that %q was left out", lie)
	require.NotContains(t, string(out), "main bubble goroutine has exited", "a bubble that does not end is no broken promise")
	if i := strings.Index(string(out), "CAUGHT"); i >= 0 {
		return strings.TrimSpace(string(out[i:]))
	}
	return fmt.Sprintf("%.600s", out)
}
