package integration_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// door is a socket at which a process listens.
type door struct {
	network, address string // abstract unix addresses begin with @
}

// doorsOf finds every socket at which a process listens, in /proc.
func doorsOf(t *testing.T, pid int) (doors []door) {
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(target, "socket:[]")] = true
		}
	}
	lines := func(name string, each func(fields []string)) {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		require.NoError(t, err)
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			each(strings.Fields(s.Text()))
		}
	}
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		lines(name, func(f []string) {
			const listening, unconnected = "0A", "07"
			if len(f) < 10 || !inodes[f[9]] || f[3] != listening && f[3] != unconnected {
				return
			}
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			require.NoError(t, err)
			doors = append(doors, door{strings.TrimSuffix(name, "6"), fmt.Sprintf("127.0.0.1:%d", port)})
		})
	}
	lines("unix", func(f []string) {
		const accepts = "00010000"
		if len(f) > 7 && f[3] == accepts && inodes[f[6]] {
			doors = append(doors, door{"unix", f[7]})
		}
	})
	return doors
}

// unseen is in each name that an unauthenticated caller must not see.
const unseen = "sekrit"

// TestIntruderAtEveryDoor finds every socket at which a process of a cluster
// listens, in /proc, so that none is missed. A row says what each socket is. A
// caller without a certificate or key gets nothing there except what the row
// allows.
func TestIntruderAtEveryDoor(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"crc", "secure"}[:rounds(1, 2)] {
		c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, S3: true, ObjectServer: true, Mode: mode})
		works(t, settingsFor(c), "cluster", "status", "--wait", "1m")
		cl := connect(t, c, client.Config{})
		_, err := cl.MkdirAll(t.Context(), "/"+unseen+"-dir", 0o755)
		require.NoError(t, err)
		met := map[string]bool{}
		for _, n := range c.All() {
			for _, d := range doorsOf(t, n.Pid()) {
				row, check := rowOf(d, n)
				require.NotEmpty(t, row, "say what a stranger may do at %s %s of %s", d.network, d.address, n.Name)
				met[row] = true
				t.Run(mode+" "+n.Name+" "+row, func(t *testing.T) {
					t.Parallel() // they wait for servers that close the connection
					check(t, d, n)
				})
			}
		}
		require.Len(t, met, 5, "%v", met)
	}
}

// rowOf returns what a socket of a process is, and the checks of an unauthenticated
// caller there.
func rowOf(d door, n *devcluster.Node) (string, func(*testing.T, door, *devcluster.Node)) {
	switch s3 := n.Role == devcluster.S3 || n.Role == devcluster.ObjectServer; {
	case d.network == "tcp" && d.address == n.Address && s3:
		return "s3", refusesS3
	case d.network == "tcp" && d.address == n.Admin:
		return "admin", refusesAllButPages
	case d.network == "tcp" && d.address == n.Address:
		return string(n.Role), refusesStrangers
	case d.network == "unix" && d.address == "@moraine/"+n.Address && n.Role == devcluster.Chunkserver:
		return "beside", refusesStrangers
	}
	return "", nil
}

// page requests one page by HTTP.
func page(t *testing.T, d door, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+d.address+path, nil)
	require.NoError(t, err)
	if method == http.MethodOptions {
		req.Header.Set("Origin", "http://example.com")
		req.Header.Set("Access-Control-Request-Method", http.MethodGet)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if !strings.Contains(path, unseen) { // the answer may repeat the request
		require.NotContains(t, string(text), unseen, "%s %s", d.address, path)
	}
	return resp.StatusCode, string(text)
}

// refusesAllButPages: an admin port has metrics, health and, for this host, profiles.
func refusesAllButPages(t *testing.T, d door, _ *devcluster.Node) {
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/debug/pprof/": 200, "/debug/pprof/goroutine?debug=2": 200,
		"/debug/pprof/cmdline": 404, "/": 404, "/status": 404, "/../etc/passwd": 404, "/%2e%2e/": 404, "/debug/vars": 404} {
		status, text := page(t, d, http.MethodGet, path)
		require.Equal(t, want, status, "%s %s: %s", d.address, path, text)
	}
	status, _ := page(t, d, http.MethodPost, "/metrics")
	require.Equal(t, http.StatusMethodNotAllowed, status)
}

// refusesS3: nothing is served without the root key, including the protocol's own
// administration; the local bucket reveals that it exists.
func refusesS3(t *testing.T, d door, n *devcluster.Node) {
	for _, method := range []string{"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"} {
		for _, key := range []string{"", "/key"} {
			if n.Role == devcluster.ObjectServer {
				continue // it has one bucket, whose name is no secret
			}
			status, text := page(t, d, method, "/"+unseen+"-dir"+key)
			none, missing := page(t, d, method, "/nothing-dir"+key)
			require.Equal(t, none, status, "%s: an existing name is answered differently from a missing one: %s, %s", method, text, missing)
			require.Equal(t, hostless(missing), hostless(text), method)
		}
	}
	for _, method := range []string{"GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"} {
		for _, path := range []string{"/", "/bucket", "/" + unseen + "-dir", "/" + unseen + "-dir/key", "/list-buckets", "/list-users", "/create-user",
			"/delete-user?access=x", "/change-bucket-owner", "/metrics", "/healthz", "/debug/pprof/"} {
			status, text := page(t, d, method, path)
			if n.Role == devcluster.ObjectServer && path == "/healthz" && method == "GET" {
				require.Equal(t, 200, status)
				require.Equal(t, "OK", text)
				continue
			}
			require.GreaterOrEqual(t, status, 400, "%s %s: %s", method, path, text)
		}
	}
}

// hostless is an S3 answer without the parts that always differ.
func hostless(text string) string {
	return regexp.MustCompile(`<(RequestId|HostId|BucketName|Resource)>[^<]*`).ReplaceAllString(text, "")
}

// refusesStrangers: a Moraine server answers no caller without a certificate, in
// any class or protocol.
func refusesStrangers(t *testing.T, d door, n *devcluster.Node) {
	dial := func() net.Conn {
		nc, err := net.Dial(d.network, d.address)
		require.NoError(t, err)
		require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
		return nc
	}
	for what, bytes := range map[string]string{"HTTP": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "nothing that is a frame": strings.Repeat("x", 4096),
		"a frame that is too long": "MRNE\x01\x01\xff\xff" + strings.Repeat("\x00", 4096), "half a frame": "MRNE\x01\x01", "half a handshake": "\x16\x03\x01\x40\x00"} {
		nc := dial()
		_, err := nc.Write([]byte(bytes))
		require.NoError(t, err, what)
		got, err := io.ReadAll(nc)
		var late net.Error
		require.False(t, err != nil && errors.As(err, &late) && late.Timeout(), "%s: %s is left open", d.address, what)
		require.Less(t, len(got), 64, "%s: %s is answered %q", d.address, what, got)
		nc.Close()
	}
	nc := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // an intruder trusts anybody
	_, err := nc.Write([]byte("x"))
	if err == nil {
		_, err = nc.Read(make([]byte, 1))
	}
	require.Error(t, err, "TLS without a certificate")
	nc.Close()

	address := d.address
	if d.network == "unix" {
		address = "unix:" + address
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, role := range []transport.Role{transport.RoleMetadata, transport.RoleChunkserver, transport.RoleClient, transport.RoleAdmin} {
		pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Insecure, Role: role, Node: "m1"}, transport.PoolDeps{})
		require.NoError(t, err)
		_, err = pool.Metadata([]string{address}).Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.Error(t, err)
		_, err = pool.Chunks(n.Name, []string{address}).Stat(ctx, &wire.StatDevices{})
		require.Error(t, err)
		if role == transport.RoleMetadata {
			_, err = pool.DialRaft(address, time.Minute)
			require.Error(t, err)
		}
		require.NoError(t, pool.Close())
	}
}
