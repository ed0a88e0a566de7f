// Package s3test is a real S3-compatible server for tests, in a process of its
// own, and a proxy before it that loses answers.
package s3test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localserver"
)

const (
	dirVariable  = "MORAINE_S3TEST_DIR"
	addrVariable = "MORAINE_S3TEST_LISTEN"
	bucketName   = "tier"
)

// Main is TestMain's: in a process that Start started it serves and does not
// return; elsewhere it runs the tests, and ends the server that they started.
func Main(m *testing.M) int {
	if dir := os.Getenv(dirVariable); dir != "" {
		err := localserver.Run(context.Background(), localserver.Config{Dir: dir, Listen: os.Getenv(addrVariable), Bucket: bucketName})
		fmt.Fprintln(os.Stderr, "object server:", err)
		return 1
	}
	defer shared.stop()
	return m.Run()
}

// Server is a store that runs.
type Server struct {
	Endpoint string
	Keys     object.Keys

	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

type sharedServer struct {
	once   sync.Once
	server *Server
	err    error
}

// shared is the one server of a test process.
var shared sharedServer

// Start returns the store of this test process; the first call starts it.
func Start(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		for range 5 { // the port may be taken between finding and using it
			if shared.server, shared.err = start(); shared.err == nil {
				return
			}
		}
	})
	require.NoError(t, shared.err)
	return shared.server
}

func start() (*Server, error) {
	dir, err := os.MkdirTemp("", "moraine-s3test-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	s := &Server{Endpoint: "http://" + addr, dir: dir, done: make(chan struct{})}
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), dirVariable+"="+dir, addrVariable+"="+addr)
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The child dies with the thread that forked it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
			close(s.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		s.stop()
		return nil, err
	}
	s.Keys, err = object.LoadKeys(filepath.Join(dir, "keys"))
	return s, err
}

func (s *Server) ready() error {
	for {
		resp, err := http.Get(s.Endpoint + localserver.HealthPath)
		if err == nil {
			resp.Body.Close()
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("the object server ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *Server) stop() {
	_ = s.cmd.Process.Kill()
	<-s.done
	os.RemoveAll(s.dir)
}

// stop ends the shared server, if there is one.
func (s *sharedServer) stop() {
	if s.server != nil {
		s.server.stop()
	}
}

// Config is that of a client of the store; keys begin with a prefix of the
// test's own. endpoint is the server's, or that of a proxy before it.
func (s *Server) Config(t testing.TB, endpoint string) object.Config {
	return object.Config{Bucket: bucketName, Prefix: prefixOf(t), Endpoint: endpoint, AccessKey: s.Keys.Access, SecretKey: s.Keys.Secret}
}

func prefixOf(t testing.TB) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '%' || r == '\\' {
			return '-'
		}
		return r
	}, t.Name())
}

// Open returns a bucket of the test's own prefix.
func (s *Server) Open(t testing.TB, endpoint string) *object.Bucket {
	t.Helper()
	b, err := object.New(s.Config(t, endpoint), object.Deps{})
	require.NoError(t, err)
	return b
}

// KeysBelow lists the keys below the test's prefix, as the server's directory has
// them.
func (s *Server) KeysBelow(t testing.TB, prefix string) (keys []string) {
	t.Helper()
	root := filepath.Join(s.dir, "buckets", bucketName)
	err := filepath.WalkDir(filepath.Join(root, prefix), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(root, path)
			keys = append(keys, rel)
		}
		return err
	})
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return keys
}
