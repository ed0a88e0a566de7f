package integration_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
)

// syncSite returns what a sync keeps: of which part, and of which kind of file. It
// returns "" for every other call.
func syncSite(node string, op vfs.Op) string {
	if op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
		return ""
	}
	return node[:1] + " " + op.Kind.String() + " " + pathNumbers.ReplaceAllString(op.Path, "N")
}

var pathNumbers = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)

// siteCounts counts the syncs of each site.
type siteCounts struct {
	mu    sync.Mutex
	sites map[string]int
}

func (s *siteCounts) rule(node string, op vfs.Op) error {
	if site := syncSite(node, op); site != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sites == nil {
			s.sites = map[string]int{}
		}
		s.sites[site]++
	}
	return nil
}

func (s *siteCounts) sorted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sites))
}

// unlisted returns the sites that no table has.
func (s *siteCounts) unlisted() (out []string) {
	for _, site := range s.sorted() {
		if _, listed := syncs[site]; !listed {
			out = append(out, site)
		}
	}
	return out
}

// TestPowerCutsHaveTeeth leaves out the syncs of one kind of file at a time, on all
// nodes, and requires that power cuts then break a promise.
func TestPowerCutsHaveTeeth(t *testing.T) {
	if site := os.Getenv(lieVariable); site != "" {
		biteOrEnd(t, site)
		return
	}
	testseed.OnlyLong(t)
	var met siteCounts
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			_, err := runHistory(t.Context(), 1+seed, 5, met.rule)
			require.NoError(t, err)
		})
	}
	require.Empty(t, met.unlisted(), "syncs that no test holds: list them")
	for _, site := range slices.Sorted(maps.Keys(syncs)) {
		t.Run(site, func(t *testing.T) {
			if why := syncs[site]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			// In a process of its own: a broken promise may show as a panic.
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // limits a hang, not a slow machine
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPowerCutsHaveTeeth$", "-test.timeout=30m")
			cmd.Env = append(os.Environ(), lieVariable+"="+site)
			out, err := cmd.CombinedOutput()
			require.NoError(t, ctx.Err(), "%.2000s", out)
			require.Error(t, err, "no power cut showed that %q was left out", site)
			t.Logf("%.600s", out)
		})
	}
}

// lieVariable names the site whose syncs a test's process leaves out.
const lieVariable = "MORAINE_TEST_LIE"

// biteOrEnd runs histories without the syncs of a site, and ends the process with
// an error as soon as one of them breaks a promise.
func biteOrEnd(t *testing.T, site string) {
	lie := func(node string, op vfs.Op) error {
		if syncSite(node, op) == site {
			return vfs.Drop
		}
		return nil
	}
	for seed := range uint64(biteSeeds) {
		cuts := 2 + int(seed%3)*4 // one-time writes at the beginning are lost at the first cuts
		synctest.Test(t, func(t *testing.T) {
			if _, err := runHistory(t.Context(), seed, cuts, lie); err != nil {
				fmt.Printf("without %q, seed %d: %v\n", site, seed, err)
				os.Exit(3)
			}
		})
	}
}

// biteSeeds is how many histories may miss a sync.
const biteSeeds = 30

// Why a site need not show here.
const (
	remade = "the index of a device is made again from its segments wherever it is damaged; only those must be synced"
	// The promise of TestEverySyncMatters of metadata/raftstore. It shows each
	// statement, on single nodes, whose histories are made for it.
	spare = "what a node keeps of a snapshot is read only where its state is lost, which no cut does; " +
		"metadata/raftstore.TestEverySyncMatters takes the state away"
	arrives = "it shows only where a cut follows the taking or the arrival of a snapshot at once, in few histories of a whole " +
		"cluster; metadata/raftstore.TestEverySyncMatters has its cuts follow it"
	nameOnly = "the file is empty: its name is what counts, and the sync of its directory has teeth"
)

// syncs are all syncs of a cluster, by site. The value is "" if power cuts of the
// whole must show that they are left out, otherwise why they need not. An unlisted
// one fails TestPowerCutsLoseNothing and TestPowerCutsHaveTeeth.
var syncs = map[string]string{
	"m sync /metadata/IDENTITY.new":                                    "",
	"m sync /metadata/PROBE":                                           "nothing reads it: the sync is there to take its time before raft may start",
	"m sync /metadata/log/META.new":                                    "",
	"m sync /metadata/log/N-N.wal":                                     "",
	"m sync /metadata/snapshots/tmp-N/META":                            arrives,
	"m sync /metadata/snapshots/tmp-N/db/MANIFEST-N":                   spare,
	"m sync /metadata/snapshots/tmp-N/db/N.log":                        spare,
	"m sync /metadata/snapshots/tmp-N/db/N.sst":                        spare,
	"m sync /metadata/snapshots/tmp-N/db/OPTIONS-N":                    spare,
	"m sync /metadata/snapshots/tmp-N/db/marker.format-version.N.N":    nameOnly,
	"m sync /metadata/snapshots/tmp-N/db/marker.manifest.N.MANIFEST-N": nameOnly,
	"m sync /metadata/state/CURRENT.new":                               "",
	"m sync /metadata/state/db-N/MANIFEST-N":                           "",
	"m sync /metadata/state/db-N/N.log": "what it loses the replicated log gives again, except where one log is torn and the next is not, which few cuts leave; " +
		"metadata/raftstore.TestEverySyncMatters has its cuts follow it",
	"m sync /metadata/state/db-N/N.sst":                        "",
	"m sync /metadata/state/db-N/OPTIONS-N":                    arrives,
	"m sync /metadata/state/db-N/marker.format-version.N.N":    nameOnly,
	"m sync /metadata/state/db-N/marker.manifest.N.MANIFEST-N": nameOnly,
	"m sync /metadata/state/db-N/temporary.N.dbtmp":            "",
	"m syncdir /":                            "",
	"m syncdir /metadata":                    "",
	"m syncdir /metadata/log":                "",
	"m syncdir /metadata/snapshots":          "",
	"m syncdir /metadata/snapshots/tmp-N":    arrives,
	"m syncdir /metadata/snapshots/tmp-N/db": spare,
	"m syncdir /metadata/state":              arrives,
	"m syncdir /metadata/state/db-N":         "",
	"n sync /deviN/device.tmp":               "",
	"n sync /deviN/index/MANIFEST-N":         remade,
	"n sync /deviN/index/N.log":              remade,
	"n sync /deviN/index/N.sst":              remade,
	"n sync /deviN/index/temporary.N.dbtmp":  remade,
	"n sync /deviN/segments/N.seg":           "",
	"n syncdir /":                            "",
	"n syncdir /deviN":                       "",
	"n syncdir /deviN/index":                 remade,
	"n syncdir /deviN/segments":              "",
}
