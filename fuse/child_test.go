package fuse_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// envChild makes the test binary run one of these functions instead of its tests.
const envChild = "MORAINE_TEST_CHILD"

var children = map[string]func(args []string) error{
	"attach-abort": attachAbort,
	"lock-files":   lockFiles,
	"map-copies":   mapCopies,
	"map-digests":  mapDigests,
	"map-peek":     mapPeek,
	"map-random":   mapRandom,
	"map-write":    mapWrite,
}

func TestMain(m *testing.M) {
	name := os.Getenv(envChild)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := children[name](os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// child runs one of children in a process of its own, and returns its output.
func child(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := childCommand(name, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.TrimSpace(string(out))
}

func childCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envChild+"="+name)
	return cmd
}

// mapFile maps a whole file, and calls do with it.
func mapFile(name string, prot, flags int, do func(f *os.File, b []byte) error) error {
	how := os.O_RDONLY
	if prot&unix.PROT_WRITE != 0 {
		how = os.O_RDWR
	}
	f, err := os.OpenFile(name, how, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), prot, flags)
	if err != nil {
		return err
	}
	if err := do(f, b); err != nil {
		return err
	}
	return unix.Munmap(b)
}

// mapDigests answers each line of its input, a file's name, with the digest of the
// file's content.
func mapDigests([]string) error {
	names := bufio.NewScanner(os.Stdin)
	for names.Scan() {
		h := sha256.New()
		err := mapFile(names.Text(), unix.PROT_READ, unix.MAP_SHARED, func(_ *os.File, b []byte) error {
			_, err := h.Write(b)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Printf("%x\n", h.Sum(nil))
	}
	return names.Err()
}

// startMapper starts a child that reads files through memory until the test ends,
// and returns a function that returns a file's digest.
func startMapper(t *testing.T) (digest func(file string) string) {
	t.Helper()
	answer := startAnswering(t, "map-digests")
	return func(file string) string { return answer(file) }
}

// startAnswering starts a child that answers each line with a line, until the test ends.
func startAnswering(t *testing.T, name string, args ...string) (answer func(line any) string) {
	t.Helper()
	cmd := childCommand(name, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	answers := bufio.NewScanner(out)
	return func(line any) string {
		_, err := fmt.Fprintln(in, line)
		require.NoError(t, err)
		require.True(t, answers.Scan(), "the child has ended")
		return answers.Text()
	}
}

// mapRandom compares a file of random bytes, of a seed and a size, with the
// expected bytes, at random places, by several concurrent readers.
func mapRandom(args []string) error {
	s, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	data := randomBytes(s, n)
	var g errgroup.Group
	for i := range 4 {
		g.Go(func() error {
			flags := []int{unix.MAP_SHARED, unix.MAP_PRIVATE}[i%2]
			return mapFile(args[0], unix.PROT_READ, flags, func(_ *os.File, b []byte) error {
				r := rand.New(rand.NewPCG(s, uint64(i)))
				for range 300 {
					off := r.IntN(n)
					end := min(off+r.IntN(10_000), n)
					if !bytes.Equal(data[off:end], b[off:end]) {
						return fmt.Errorf("bytes %d to %d differ", off, end)
					}
				}
				return nil
			})
		})
	}
	return g.Wait()
}

const throughMemory, pastIt = "through memory", "past it"

// mapWrite writes to a file through its map and past it, and reads each write the
// other way.
func mapWrite(args []string) error {
	return mapFile(args[0], unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, func(f *os.File, b []byte) error {
		copy(b[1<<20:], throughMemory)
		if _, err := f.WriteAt([]byte(pastIt), 2<<20); err != nil {
			return err
		}
		if got := string(b[2<<20 : 2<<20+len(pastIt)]); got != pastIt {
			return fmt.Errorf("memory has %q", got)
		}
		p := make([]byte, len(throughMemory))
		if _, err := f.ReadAt(p, 1<<20); err != nil {
			return err
		}
		if string(p) != throughMemory {
			return fmt.Errorf("the file has %q", p)
		}
		return f.Sync()
	})
}
