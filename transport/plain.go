package transport

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// plainStream is an unencrypted connection: buffers leave in one writev.
//
// Small reads and writes bypass Go's scheduler (rawIO). It would treat each of them
// as a system call that may block. To watch such calls, it wakes a thread of its own
// (sysmon) whenever the process was idle. For a server of small requests that was
// half of all switches of threads. The socket is non-blocking, so none of these
// calls waits: they copy at most rawBytes.
type plainStream struct {
	net.Conn
	raw syscall.RawConn // nil: Conn is no socket
	in  rawIO           // of the one reader
	out rawIO           // of the one writer
}

const (
	// rawBytes limits a read or write that the scheduler does not see. A thread
	// copies them in some microseconds, and keeps its place among the running ones.
	rawBytes = 96 << 10
	// rawParts limits the buffers of such a write.
	rawParts = 64
)

func newPlainStream(nc net.Conn) *plainStream {
	s := &plainStream{Conn: nc}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	s.in.try, s.out.try = s.in.read, s.out.write
	return s
}

// Read implements net.Conn, for one caller at a time.
func (s *plainStream) Read(p []byte) (int, error) {
	if s.raw == nil || len(p) == 0 || len(p) > rawBytes {
		return s.Conn.Read(p)
	}
	s.in.p = p
	err := s.raw.Read(s.in.try)
	s.in.p = nil
	switch {
	case err != nil:
		return 0, err
	case s.in.errno != 0:
		return 0, s.failed("read", s.in.errno)
	case s.in.n == 0:
		return 0, io.EOF
	}
	return s.in.n, nil
}

func (s *plainStream) writeVec(bufs *net.Buffers) error {
	for len(*bufs) > 0 {
		if s.raw == nil || !s.out.fits(*bufs) {
			_, err := bufs.WriteTo(s.Conn)
			return err
		}
		err := s.raw.Write(s.out.try)
		clear(s.out.iov)
		switch {
		case err != nil:
			return err
		case s.out.errno != 0:
			return s.failed("writev", s.out.errno)
		}
		consume(bufs, s.out.n)
	}
	return nil
}

func (s *plainStream) failed(call string, errno syscall.Errno) error {
	return &net.OpError{Op: call, Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError(call, errno)}
}

// rawIO is one direction of a socket. try is what RawConn.Read or Write calls, made
// once: it makes one system call, and reports whether that did not have to wait.
type rawIO struct {
	try   func(fd uintptr) bool
	p     []byte          // to read into
	iov   []syscall.Iovec // to write
	n     int             // what it returned
	errno syscall.Errno
}

func (r *rawIO) read(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&r.p[0])), uintptr(len(r.p)))
	for errno == syscall.EINTR {
		n, _, errno = syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&r.p[0])), uintptr(len(r.p)))
	}
	r.n, r.errno = int(n), errno
	return errno != syscall.EAGAIN
}

func (r *rawIO) write(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&r.iov[0])), uintptr(len(r.iov)))
	for errno == syscall.EINTR {
		n, _, errno = syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&r.iov[0])), uintptr(len(r.iov)))
	}
	r.n, r.errno = int(n), errno
	return errno != syscall.EAGAIN
}

// fits prepares a write of bufs, unless it is too large or empty.
func (r *rawIO) fits(bufs net.Buffers) bool {
	r.iov = r.iov[:0]
	size := 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		size += len(b)
		if size > rawBytes || len(r.iov) == rawParts {
			return false
		}
		v := syscall.Iovec{Base: &b[0]}
		v.SetLen(len(b))
		r.iov = append(r.iov, v)
	}
	return len(r.iov) > 0
}

// consume removes the first n bytes of bufs, and empty buffers before the rest.
func consume(bufs *net.Buffers, n int) {
	for len(*bufs) > 0 {
		first := (*bufs)[0]
		if len(first) > n {
			(*bufs)[0] = first[n:]
			return
		}
		n -= len(first)
		(*bufs)[0] = nil
		*bufs = (*bufs)[1:]
	}
}
