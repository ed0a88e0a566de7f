package mountcmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/fuse/observe"
)

// The process of a mount listens on a unix socket beside its record. Only the user who mounts, and
// root, may ask it for counts and profiles.

// controlFile is the socket of the mount on dir, in a directory of mountFile. Its name is short: the
// kernel allows 107 bytes.
func controlFile(base, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(base, "mount-"+hex.EncodeToString(sum[:8])+".sock")
}

// status is what the process of a mount says of itself.
type status struct {
	Pid     int     `json:"pid"`
	Dir     string  `json:"dir"`
	Source  string  `json:"source"`
	Seconds float64 `json:"seconds"` // since the mount began
	// Operations are the requests so far.
	Operations observe.Snapshot `json:"operations"`
	OpenFiles  int              `json:"open_files"`
	// MemoryBytes is the resident memory of the process.
	MemoryBytes uint64 `json:"memory_bytes"`
	CacheHits   uint64 `json:"cache_hits"`
	CacheMisses uint64 `json:"cache_misses"`
}

// control answers at the socket of one mount.
type control struct {
	source, dir string
	mount       *fuse.Mount
	client      *mountClient
}

// startControl listens until the caller calls stop.
func startControl(c *control) (stop func(), err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(c.status()) })
	mux.HandleFunc("GET /profile", profileProcess)
	return listenBeside(controlFile, c.dir, mux)
}

// listenBeside answers at a socket beside the record of the mount on dir, until the caller calls stop.
func listenBeside(socketOf func(base, dir string) string, dir string, h http.Handler) (stop func(), err error) {
	record, err := mountFile(dir, ".json")
	if err != nil {
		return nil, err
	}
	file := socketOf(filepath.Dir(record), dir)
	// The record's lock shows that no other process serves this mount.
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: file, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// A later mount on the directory may have put its own socket there, when this one ends.
	l.SetUnlinkOnClose(false)
	own, err := os.Lstat(file)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(ownersOnly{l}) }() // it ends by Close
	return func() {
		_ = server.Close()
		if now, err := os.Lstat(file); err == nil && os.SameFile(own, now) {
			_ = os.Remove(file)
		}
	}, nil
}

func (c *control) status() status {
	s := c.client.Stats()
	o := c.mount.Observer()
	return status{Pid: os.Getpid(), Dir: c.dir, Source: c.source, Seconds: o.Uptime().Seconds(), Operations: o.Snapshot(), OpenFiles: c.mount.OpenFiles(),
		MemoryBytes: residentMemory(), CacheHits: s.CacheHits, CacheMisses: s.CacheMisses}
}

// residentMemory returns that of this process; 0: unknown.
func residentMemory() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}

// maxProfile bounds a profile.
const maxProfile = 10 * time.Minute

// profileProcess answers with a CPU profile of some seconds.
func profileProcess(w http.ResponseWriter, r *http.Request) {
	seconds, err := time.ParseDuration(r.FormValue("for"))
	if err != nil || seconds <= 0 || seconds > maxProfile {
		http.Error(w, "a profile takes up to "+maxProfile.String(), http.StatusBadRequest)
		return
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(seconds):
	case <-r.Context().Done():
	}
}

// ownersOnly is a listener that closes connections of users other than this process's, and root.
type ownersOnly struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l ownersOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peer(c); err == nil && (uid == 0 || int(uid) == os.Geteuid()) {
			return c, nil
		}
		_ = c.Close()
	}
}

// peer returns the user at the other end.
func peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		return 0, errors.Join(cerr, err)
	}
	return cred.Uid, nil
}

// daemon asks the process of the mount on a directory.
type daemon struct {
	dir  string
	http *http.Client
}

// findDaemon finds the process of the mount that dir is, or lies in.
func findDaemon(arg string) (*daemon, error) { return findProcess(arg, controlFile) }

// findProcess is findDaemon for the process that listens at the socket.
func findProcess(arg string, socketOf func(base, dir string) string) (*daemon, error) {
	dir, err := filepath.Abs(arg)
	if err != nil {
		return nil, err
	}
	m, err := fuse.MountOf(dir)
	if err != nil {
		return nil, err
	}
	at, user := m.Dir, m.User
	record, err := mountFile(at, ".json")
	if err != nil {
		return nil, err
	}
	sockets := []string{socketOf(filepath.Dir(record), at)}
	if os.Geteuid() == 0 && user != 0 { // the mount of another user
		for _, base := range []string{fmt.Sprintf("/run/user/%d/moraine", user), filepath.Join(os.TempDir(), fmt.Sprintf("moraine-%d", user))} {
			sockets = append(sockets, socketOf(base, at))
		}
	}
	dial := func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		for _, s := range sockets {
			if c, err = dialUser(ctx, s, user); !errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		return c, err
	}
	return &daemon{dir: at, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// dialUser connects to a socket at which a process of a user, or of root, accepts.
func dialUser(ctx context.Context, socket string, user int) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	uid, err := peer(c.(*net.UnixConn))
	if err == nil && uid != 0 && int(uid) != user {
		err = fmt.Errorf("%s belongs to user %d, and not to the one who mounted", socket, uid)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// The most bytes of the answers of a mount's process.
const (
	maxStatus      = 16 << 20
	maxProfileSize = 1 << 30
)

// get sends one request, whose answer the caller closes.
func (d *daemon) get(ctx context.Context, path string, args url.Values) (io.ReadCloser, error) {
	return d.send(ctx, http.MethodGet, path, args)
}

func (d *daemon) send(ctx context.Context, method, path string, args url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://mount"+path+"?"+args.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%s: the process of the mount does not answer at its socket: it has ended, or another user mounts it", d.dir)
	case err != nil:
		return nil, fmt.Errorf("%s: the process of the mount: %w", d.dir, err)
	case resp.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, errors.Join(fmt.Errorf("%s: %s", d.dir, strings.TrimSpace(string(text))), resp.Body.Close())
	}
	return resp.Body, nil
}

// status asks for counts.
func (d *daemon) status(ctx context.Context) (s status, err error) {
	body, err := d.get(ctx, "/status", nil)
	if err != nil {
		return status{}, err
	}
	defer body.Close()
	return s, json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(&s)
}
