package integration_test

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
)

// This file leaves out the syncs of the local bucket, one kind at a time, and
// requires that the histories of power_evict_test.go then lose evicted bytes.

// bucketSite returns what a sync of the bucket's disk makes durable, or "" for
// every other call.
func bucketSite(op vfs.Op) string {
	if op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
		return ""
	}
	return op.Kind.String() + " " + bucketNames.ReplaceAllString(op.Path, "N")
}

// bucketNames are the parts of names that differ from file to file: the number of a
// temporary file, and the name of an upload.
var bucketNames = regexp.MustCompile(`[0-9a-f]{32}|[0-9]+`)

// bucketSyncs counts the syncs of each site.
type bucketSyncs struct {
	mu    sync.Mutex
	sites map[string]int
}

func (s *bucketSyncs) rule(op vfs.Op) error {
	if site := bucketSite(op); site != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sites == nil {
			s.sites = map[string]int{}
		}
		s.sites[site]++
	}
	return nil
}

// unlisted returns the sites that bucketTeeth does not list.
func (s *bucketSyncs) unlisted() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, site := range slices.Sorted(maps.Keys(s.sites)) {
		if _, listed := bucketTeeth[site]; !listed {
			out = append(out, site)
		}
	}
	return out
}

// passing is why the syncs of uploads need not show here.
const passing = "a completion reads the parts and compares their sums, and a flush whose upload is gone begins again: " +
	"tiers/object/localstore.TestEverySyncIsNeeded has histories made for it"

// bucketSync is a kind of sync of the bucket.
type bucketSync struct {
	why string // why power cuts of the whole path need not show that it is left out; "": they must
}

// bucketTeeth are all syncs of the bucket, by site. Those of the store's own
// directories show only at the first cut, and in few histories.
var bucketTeeth = map[string]bucketSync{
	"sync bucket/store/objects/N.new":   {},
	"sync bucket/store/uploads/N/N.new": {why: passing},
	"syncdir .":                         {},
	"syncdir bucket":                    {},
	"syncdir bucket/store":              {},
	"syncdir bucket/store/objects":      {},
	"syncdir bucket/store/uploads":      {why: passing},
	"syncdir bucket/store/uploads/N":    {why: passing},
}

// bucketBites is how many histories may miss a sync that is left out.
const bucketBites = 30

// TestPowerCutsOfTheBucketHaveTeeth leaves out the syncs of the local bucket: all
// of them, and one kind at a time. Power cuts after evictions must then lose
// acknowledged bytes. Only the long form runs it.
func TestPowerCutsOfTheBucketHaveTeeth(t *testing.T) {
	testseed.OnlyLong(t)
	lies := map[string]func(site string) bool{"all": func(site string) bool { return site != "" }}
	for site, tooth := range bucketTeeth {
		if tooth.why == "" {
			lies[site] = func(s string) bool { return s == site }
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lies)) {
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
			t.Parallel()
			rule := func(op vfs.Op) error {
				if lies[name](bucketSite(op)) {
					return vfs.Drop
				}
				return nil
			}
			for seed := range uint64(bucketBites) {
				var lost error
				synctest.Test(t, func(t *testing.T) {
					h, err := runEvictHistory(t.Context(), 1+seed, 1+3*int(seed%2), rule)
					if !errors.Is(err, errEvictedLost) {
						require.NoError(t, err, "seed %d: without a sync, nothing but bytes may be missing", 1+seed)
						return
					}
					require.Positive(t, h.evicted)
					lost = fmt.Errorf("seed %d: %w", 1+seed, err)
				})
				if lost != nil {
					t.Logf("%.300v", lost)
					return
				}
			}
			t.Fatalf("no power cut of %d histories showed that %q was left out", bucketBites, name)
		})
	}
}
