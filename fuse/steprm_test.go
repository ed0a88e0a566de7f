package fuse_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
)

// saveWide commits a checkpoint of many ranks, of 64 small files each.
func saveWide(t *testing.T, c *incluster.Client, path string, step uint64, ranks int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	parts := make([]*ckpt.Part, ranks)
	for rank := range parts {
		run, err := ckpt.OpenRun(t.Context(), c.Client, path, ckpt.RunOptions{Rank: uint32(rank), World: uint32(ranks),
			Launch: ckpt.Launch{Name: "wide"}, Takeover: true})
		require.NoError(t, err)
		t.Cleanup(func() { _ = run.Close(t.Context()) })
		g.Go(func() error {
			part, err := run.Begin(t.Context(), step, ckpt.BeginOptions{})
			if err != nil {
				return err
			}
			parts[rank] = part
			if err := part.AddTensor(t.Context(), ckpt.Tensor{Name: fmt.Sprint("t", rank), DType: ckpt.U8, Shape: []int64{64}, Data: make([]byte, 64)}); err != nil {
				return err
			}
			for n := range 63 {
				if err := part.AddBlob(t.Context(), fmt.Sprint("b", n), []byte{byte(n)}); err != nil {
					return err
				}
			}
			return part.Seal(t.Context())
		})
	}
	require.NoError(t, g.Wait())
	_, err := parts[0].Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
}

// numbers reads a directory as rm does, and returns the inode numbers of its
// entries.
func numbers(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(fd) //nolint:errcheck // it reads
	out := map[string]uint64{}
	for buf := make([]byte, 64<<10); ; {
		n, err := unix.Getdents(fd, buf)
		require.NoError(t, err)
		if n == 0 {
			return out
		}
		for b := buf[:n]; len(b) > 0; {
			ino, length := uint64(0), int(b[16])|int(b[17])<<8
			for i := range 8 {
				ino |= uint64(b[i]) << (8 * i)
			}
			name, _, _ := strings.Cut(string(b[19:length]), "\x00")
			out[name] = ino
			b = b[length:]
		}
	}
}

// TestRemovalOfAWideStepThroughAMount: rm sorts the files of a directory with more
// than 10,000 of them by inode number. The index of a checkpoint has the smallest
// one in a listing. So rm -r removes the checkpoint by its first unlink, however
// many files it has. If rm is interrupted, the checkpoint is either complete or
// removed.
func TestRemovalOfAWideStepThroughAMount(t *testing.T) {
	ranks := 4
	if os.Getenv("MORAINE_TEST_LONG") != "" {
		ranks = 160 // 10,241 files
	}
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	saver, err := c.Client(t.Context(), "trainer")
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	for step := uint64(1); step <= 3; step++ {
		saveWide(t, saver, "/runs/r", step, ranks)
	}
	steps := func() (out []uint64) {
		root, err := saver.Stat(t.Context(), "/runs/r")
		require.NoError(t, err)
		list, err := ckpt.ListSteps(t.Context(), saver.Client, root.Inode(), false)
		require.NoError(t, err)
		for _, s := range list {
			out = append(out, s.Step)
		}
		return out
	}
	dir := m.at("runs/r/attempt-1/step-3")
	listed := numbers(t, dir)
	require.Len(t, listed, ranks*64+1+2)
	for name, ino := range listed {
		if name != "." && name != ".." && name != ckpt.IndexName {
			require.Less(t, listed[ckpt.IndexName], ino, name)
		}
	}
	out, err := exec.Command("rm", "-r", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = os.Lstat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, []uint64{1, 2}, steps())

	// A removal that is interrupted at any moment.
	dir = m.at("runs/r/attempt-1/step-2")
	rm := exec.Command("rm", "-r", dir)
	require.NoError(t, rm.Start())
	time.Sleep(time.Duration(ranks) * 500 * time.Microsecond)
	require.NoError(t, rm.Process.Signal(syscall.SIGINT))
	_ = rm.Wait()
	to, err := os.Readlink(m.at("runs/r/latest"))
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	if left := steps(); len(left) == 2 {
		require.NoError(t, err)
		require.Len(t, entries, ranks*64+1, "it is wholly there")
		require.Equal(t, "attempt-1/step-2", to)
	} else {
		require.Equal(t, []uint64{1}, left)
		require.Equal(t, "attempt-1/step-1", to)
		_, err = os.Stat(dir + "/" + ckpt.IndexName)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}
