package fuse_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Readers of one mount, with files that stay open and files that they open again, never see bytes
// from before a change that another mount has made and synced. Some of them have the kernel forget
// pages, so that reads fill pages while these are dropped.
func TestReadersNeverSeeWhatWasBeforeASync(t *testing.T) {
	const pages = 512
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	write := func(f *os.File, version uint64) error {
		b := make([]byte, pages*4096)
		for p := range pages {
			binary.BigEndian.PutUint64(b[p*4096:], version)
		}
		if _, err := f.WriteAt(b, 0); err != nil {
			return err
		}
		return f.Sync()
	}
	w, err := os.Create(other.at("file"))
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, write(w, 1))
	m.withPages(t, m.at("file"))
	var synced atomic.Uint64
	synced.Store(1)
	done := make(chan struct{})
	var g errgroup.Group
	s := seed(t)
	for i := range 6 {
		g.Go(func() error { return readVersions(m.at("file"), i, s, pages, &synced, done) })
	}
	g.Go(func() error {
		defer close(done)
		for version := range uint64(testseed.Runs(t, 40, 2000)) {
			if err := write(w, version+2); err != nil {
				return err
			}
			synced.Store(version + 2)
		}
		return nil
	})
	require.NoError(t, g.Wait())
}

// readVersions reads at random places until done, and checks that each page is of the version that
// was synced before, or of a later one.
func readVersions(path string, reader int, seed uint64, pages int, synced *atomic.Uint64, done <-chan struct{}) error {
	r := rand.New(rand.NewPCG(seed, uint64(reader)))
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 64<<10)
	for n := 0; ; n++ {
		select {
		case <-done:
			return nil
		default:
		}
		least := synced.Load()
		if reader%2 == 0 { // opens it again
			_ = f.Close()
			if f, err = os.Open(path); err != nil {
				return err
			}
		}
		if reader%3 == 0 {
			if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
				return err
			}
		}
		if _, err := f.Stat(); err != nil { // an open file shows what others have synced from here on
			return err
		}
		first := r.IntN(pages - len(b)/4096)
		if _, err := f.ReadAt(b, int64(first)*4096); err != nil {
			return err
		}
		for p := range len(b) / 4096 {
			if v := binary.BigEndian.Uint64(b[p*4096:]); v < least {
				return fmt.Errorf("reader %d, read %d: page %d is of version %d, and %d was synced before", reader, n, first+p, v, least)
			}
		}
	}
}
