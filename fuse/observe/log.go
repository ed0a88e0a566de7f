package observe

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// AccessLog writes a line for each request. A request never waits for it: lines that come faster
// than the disk takes them are left out, and their number is logged.
type AccessLog struct {
	file   string
	lines  chan line
	reopen chan struct{}
	stop   chan struct{}
	done   chan struct{}
	lost   atomic.Uint64
	log    *slog.Logger
}

// line is one request, until it is written.
type line struct {
	at       time.Time
	uid, pid uint32
	op       operation
	inode    uint64
	name     string
	bytes    int
	status   gofuse.Status
	took     time.Duration
}

// waitingLines is how many requests may wait for the disk.
const waitingLines = 8192

// OpenAccessLog opens the file, to append to it.
func OpenAccessLog(file string, log *slog.Logger) (*AccessLog, error) {
	f, err := openLog(file)
	if err != nil {
		return nil, err
	}
	l := &AccessLog{file: file, log: log, lines: make(chan line, waitingLines), reopen: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go l.write(f)
	return l, nil
}

func openLog(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// Reopen makes the log go on in a new file of its name: another program has renamed the old one.
func (l *AccessLog) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default: // it will do so already
	}
}

// Close writes the lines that wait. Those of later requests are lost.
func (l *AccessLog) Close() {
	close(l.stop)
	<-l.done
}

// add takes the line of a request. The server uses the request's memory again after the answer.
func (l *AccessLog) add(c call, s gofuse.Status, took time.Duration) {
	select {
	case l.lines <- line{at: c.start, uid: c.in.Uid, pid: c.in.Pid, op: c.op, inode: c.in.NodeId, name: strings.Clone(c.name), bytes: c.bytes, status: s, took: took}:
	default:
		l.lost.Add(1)
	}
}

// write writes lines until the log is closed. They reach the file when no more wait.
func (l *AccessLog) write(f *os.File) {
	defer close(l.done)
	defer func() { _ = f.Close() }() // each write reported its error
	w := bufio.NewWriterSize(f, 64<<10)
	var buf []byte
	for {
		if len(l.lines) == 0 {
			l.flush(w, f)
		}
		select {
		case e := <-l.lines:
			if lost := l.lost.Swap(0); lost > 0 {
				_, _ = fmt.Fprintf(w, "%s - - lost - - - %d -\n", e.at.UTC().Format(timeFormat), lost)
			}
			buf = e.append(buf[:0])
			_, _ = w.Write(buf) // flush reports it
		case <-l.reopen:
			l.flush(w, f)
			next, err := openLog(l.file)
			if err != nil {
				l.log.Error("access log stays in its old file", "file", l.file, "err", err)
				continue
			}
			_ = f.Close()
			f = next
			w.Reset(f)
		case <-l.stop:
			for len(l.lines) > 0 {
				e := <-l.lines
				_, _ = w.Write(e.append(buf[:0]))
			}
			l.flush(w, f)
			return
		}
	}
}

// flush writes the gathered lines. After an error they are lost, and the log goes on.
func (l *AccessLog) flush(w *bufio.Writer, f *os.File) {
	if err := w.Flush(); err != nil {
		l.log.Error("access log write failed", "file", l.file, "err", err)
		w.Reset(f)
	}
}

// timeFormat has microseconds, and as many characters each time.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// append appends the text: time, uid, pid, operation, inode, name, bytes, result, seconds.
func (e line) append(b []byte) []byte {
	b = e.at.UTC().AppendFormat(b, timeFormat)
	b = strconv.AppendUint(append(b, ' '), uint64(e.uid), 10)
	b = strconv.AppendUint(append(b, ' '), uint64(e.pid), 10)
	b = append(append(b, ' '), e.op.String()...)
	b = strconv.AppendUint(append(b, ' '), e.inode, 10)
	if e.name == "" {
		b = append(b, " -"...)
	} else {
		b = strconv.AppendQuoteToASCII(append(b, ' '), e.name)
	}
	b = strconv.AppendInt(append(b, ' '), int64(e.bytes), 10)
	if e.status == gofuse.OK {
		b = append(b, " ok "...)
	} else {
		b = append(append(append(b, ' '), unix.ErrnoName(unix.Errno(e.status))...), ' ')
	}
	return append(strconv.AppendFloat(b, e.took.Seconds(), 'f', 6, 64), '\n')
}
