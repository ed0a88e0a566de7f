package metadata_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// smalls makes n files of one copied stripe of size bytes each in a directory, by separate commits.
func (w *wearing) smalls(dir uint64, n int, size uint64) (files []uint64) {
	w.t.Helper()
	g, err := w.k.grant(uint32(n), &wire.Scheme{K: 1, M: 2})
	require.NoError(w.t, err)
	for i := range n {
		resp, err := w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: dir, Name: fmt.Sprint("f", i), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
		require.NoError(w.t, err)
		at := g.Placements[i]
		s := &wire.Stripe{Id: at.Stripe, Scheme: at.Scheme, Version: 1, Length: size}
		for j, d := range at.Devices {
			s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Crc: uint32(j), Level: uint32(moraine.NVMe)})
		}
		f := resp.GetEntry().Attr.Inode
		_, err = w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
			Level: uint32(moraine.NVMe), Stripes: []*wire.Stripe{s}, Extents: []*wire.Extent{{Length: size, Stripe: s.Id}}}}})
		require.NoError(w.t, err)
		files = append(files, f)
	}
	return files
}

// mkdir makes a directory in the root, with a policy if scheme is given.
func (w *wearing) mkdir(name string, scheme *wire.Scheme) uint64 {
	w.t.Helper()
	return w.mkdirIn(root, name, scheme)
}

func (w *wearing) mkdirIn(parent uint64, name string, scheme *wire.Scheme) uint64 {
	w.t.Helper()
	resp, err := w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Exclusive: true}}})
	require.NoError(w.t, err)
	dir := resp.GetEntry().Attr.Inode
	if scheme != nil {
		_, err = w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{
			Inode: dir, Policy: &wire.Policy{Scheme: scheme}}}})
		require.NoError(w.t, err)
	}
	return dir
}

func packs(t *testing.T, fn func(w *wearing)) {
	bubble(t, func(cfg *metadata.Config) {
		cfg.RewriteEvery, cfg.RepairGrace, cfg.PackAfter = rewriteEvery, 30*time.Second, 30*time.Second
	}, func(c *cluster) {
		fn(&wearing{cluster: c, nodes: c.fleet(7), k: c.open(peer(transport.RoleClient, "c1"))})
	})
}

// TestPackJobs: files of many directories below one are packed together, at most 128, if their
// policies agree; two jobs live at a time. No job has files with another scheme, with too few
// companions, or larger than a small stripe.
func TestPackJobs(t *testing.T) {
	packs(t, func(w *wearing) {
		want := map[uint64]string{}
		project := w.mkdirIn(w.mkdir("team", nil), "project", nil)
		add := func(kind string, files []uint64) {
			for _, f := range files {
				want[f] = kind
			}
		}
		for n := range 50 {
			add("default", w.smalls(w.mkdirIn(project, fmt.Sprint("d", n), nil), 6, 1000))
		}
		three := w.mkdirIn(project, "three", &wire.Scheme{K: 3, M: 2})
		for n := range 5 {
			add("three", w.smalls(w.mkdirIn(project, fmt.Sprint("of three", n), &wire.Scheme{K: 3, M: 2}), 3, 1000))
		}
		add("three", w.smalls(three, 5, 1000))
		w.smalls(w.mkdir("copies", &wire.Scheme{K: 1, M: 2}), 20, 1000)
		w.smalls(w.mkdir("other", &wire.Scheme{K: 5, M: 1}), 20, 1000)
		w.smalls(w.mkdir("few", &wire.Scheme{K: 2, M: 2}), 7, 1000)
		w.worn("large", 10, 16<<20, nil)
		var jobs []string
		for range 60 {
			w.pass(4*time.Second, w.nodes...)
			require.LessOrEqual(t, len(w.rewrites()), 2)
			for _, j := range w.nodes[0].leaseRewrites() {
				require.NotEmpty(t, j.Rewrite.Files, "%v", j)
				require.LessOrEqual(t, len(j.Rewrite.Files), 128)
				kind := want[j.Rewrite.Files[0]]
				require.NotEmpty(t, kind)
				for _, f := range j.Rewrite.Files {
					require.Equal(t, kind, want[f])
					delete(want, f) // none is given twice
				}
				jobs = append(jobs, kind)
				w.nodes[0].end(j)
			}
			if len(want) == 0 {
				break
			}
		}
		require.Empty(t, want)
		require.ElementsMatch(t, []string{"default", "default", "default", "three"}, jobs)
	})
}

// TestPackingKeepsDomainsApart: files of two projects, or of a confined session's directory and
// others, are not packed together, however close their numbers are.
func TestPackingKeepsDomainsApart(t *testing.T) {
	packs(t, func(w *wearing) {
		domain := map[uint64]string{}
		add := func(name string, files []uint64) {
			for _, f := range files {
				domain[f] = name
			}
		}
		team := w.mkdir("team", nil)
		one, two := w.mkdirIn(team, "one", nil), w.mkdirIn(team, "two", nil)
		private := w.mkdirIn(one, "private", nil)
		for n := range 4 {
			name := fmt.Sprint("d", n)
			add("one", w.smalls(w.mkdirIn(one, name, nil), 3, 1000))
			add("two", w.smalls(w.mkdirIn(two, name, nil), 3, 1000))
			add("private", w.smalls(w.mkdirIn(private, name, nil), 3, 1000))
		}
		confined := peer(transport.RoleClient, "c2")
		confined.Scope = "/team/one/private"
		inside := w.open(confined)
		var jobs []string
		for range 60 {
			_, err := inside.do(&wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{}}})
			require.NoError(t, err)
			w.pass(4*time.Second, w.nodes...)
			for _, j := range w.nodes[0].leaseRewrites() {
				require.NotEmpty(t, j.Rewrite.Files)
				of := domain[j.Rewrite.Files[0]]
				for _, f := range j.Rewrite.Files {
					require.Equal(t, of, domain[f])
					delete(domain, f)
				}
				jobs = append(jobs, of)
				w.nodes[0].end(j)
			}
			if len(domain) == 0 {
				break
			}
		}
		require.Empty(t, domain)
		require.ElementsMatch(t, []string{"one", "two", "private"}, jobs)
	})
}

// TestPackingIsTurnedOff: with a negative time no file is packed.
func TestPackingIsTurnedOff(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) {
		cfg.RewriteEvery, cfg.PackAfter = rewriteEvery, -time.Second
	}, func(c *cluster) {
		w := &wearing{cluster: c, nodes: c.fleet(7), k: c.open(peer(transport.RoleClient, "c1"))}
		w.smalls(root, 20, 1000)
		w.settle(w.nodes...)
		w.settle(w.nodes...)
		require.Empty(t, w.rewrites())
	})
}
