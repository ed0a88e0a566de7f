package fuse_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The rows of the leak table that read mapped files do it in a child: a page of a mapping that
// this process serves itself would have it wait for itself (harness_test.go).

// mapCopies answers each line of its input: `map ID FILE` maps a file, `copy ID OFF N` has the
// kernel read N bytes of it, `unmap ID` ends it. An answer is the bytes copied and an errno.
func mapCopies([]string) error {
	maps, fds := map[int][]byte{}, map[int]int{}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	drained := make([]byte, 64<<10)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var id, off, n int
		if _, err := fmt.Sscanf(lines.Text(), "copy %d %d %d", &id, &off, &n); err == nil {
			wrote, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(pipe[1]), uintptr(unsafe.Pointer(&maps[id][off])), uintptr(n))
			if errno != 0 {
				wrote = 0
			}
			for left := int(wrote); left > 0; {
				got, err := unix.Read(pipe[0], drained[:left])
				if err != nil {
					return err
				}
				left -= got
			}
			fmt.Println(wrote, int(errno))
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "unmap %d", &id); err == nil {
			fmt.Println(0, errnoOf(unix.Munmap(maps[id])))
			_ = unix.Close(fds[id])
			delete(maps, id)
			delete(fds, id)
			continue
		}
		words := strings.SplitN(lines.Text(), " ", 3) // a name may have spaces
		if _, err := fmt.Sscan(words[1], &id); err != nil || words[0] != "map" {
			return fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		fd, err := unix.Open(words[2], unix.O_RDONLY, 0)
		if err == nil {
			fds[id] = fd
			maps[id], err = unix.Mmap(fd, 0, 4*0x1000, unix.PROT_READ, unix.MAP_SHARED)
		}
		fmt.Println(0, errnoOf(err))
	}
	return lines.Err()
}

func errnoOf(err error) int {
	if errno, ok := err.(unix.Errno); ok {
		return int(errno)
	}
	return 0
}

// mapper is the child of a leak table.
type mapper struct {
	mu  sync.Mutex // guards what follows, over a question and its answer
	in  io.Writer
	out *bufio.Scanner
	ids int
}

func (e *leakEnv) startMapper() {
	cmd := childCommand("map-copies")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(e.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(e.t, err)
	require.NoError(e.t, cmd.Start())
	e.t.Cleanup(func() {
		require.NoError(e.t, in.Close())
		require.NoError(e.t, cmd.Wait())
	})
	e.mapper = &mapper{in: in, out: bufio.NewScanner(out)}
}

func (m *mapper) ask(format string, args ...any) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := fmt.Fprintf(m.in, format+"\n", args...); err != nil {
		return 0, err
	}
	if !m.out.Scan() {
		return 0, fmt.Errorf("the child has ended: %w", m.out.Err())
	}
	var errno int
	if _, err := fmt.Sscan(m.out.Text(), &n, &errno); err != nil {
		return 0, fmt.Errorf("the child answers %q: %w", m.out.Text(), err)
	}
	if errno != 0 {
		return n, unix.Errno(errno)
	}
	return n, nil
}

// onMapping copies n bytes at off of a mapped file into a pipe. The kernel reads the pages
// for the system call. Where change is given it is made to a file of its own, once that is
// mapped.
func onMapping(off, n int, change func(e *leakEnv, path string)) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		file, undo := e.file, func() {}
		if change != nil {
			file, undo = path, func() { _ = unix.Unlink(path) }
			require.NoError(e.t, os.WriteFile(path, e.buf[:leakContent], 0o644))
		}
		e.mapper.mu.Lock()
		e.mapper.ids++
		id := e.mapper.ids
		e.mapper.mu.Unlock()
		_, err := e.mapper.ask("map %d %s", id, file)
		require.NoError(e.t, err)
		if change != nil {
			change(e, path)
		}
		return leakCall{func() error {
			wrote, err := e.mapper.ask("copy %d %d %d", id, off, n)
			return size(wrote, n, err)
		}, func() {
			_, _ = e.mapper.ask("unmap %d", id)
			undo()
		}}
	}
}
