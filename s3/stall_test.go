package s3_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The endpoint disconnects a client that sends half of a body and then nothing, and
// one that never reads its answer. It releases what they held.
func TestStalledClientsAreDisconnected(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "stalls")
	data := bytesOf(seed(t), leakBody)
	put(t, c, b, "big", data, putOptions(""))
	e := &s3Leaks{t: t, c: c, bucket: b}
	before := keptByS3()
	half := e.stall(&s3Request{method: "PUT", key: "half", body: string(data[:4<<20])}, 2<<20)
	defer half.Close()
	unread := e.stall(&s3Request{method: "GET", key: "big"}, 0)
	defer unread.Close()
	require.NoError(t, half.SetReadDeadline(time.Now().Add(2*time.Minute)))
	answer, err := io.ReadAll(half)
	require.NoError(t, err, "the endpoint does not end the connection")
	require.Contains(t, string(answer), "IncompleteBody")
	require.Eventually(t, func() bool {
		now := keptByS3()
		return now.memory == 0 && now.Count() <= before.Count()+4 && now.Descriptors <= before.Descriptors+4
	}, 2*time.Minute, 50*time.Millisecond, "before %+v", before)
	require.NoError(t, unread.SetReadDeadline(time.Now().Add(2*time.Minute)))
	n, _ := io.Copy(io.Discard, unread) // the sockets' buffers, and then the end
	require.Less(t, n, int64(leakBody))
}

// stall sends a request and sent bytes of its body, and then nothing. Its
// connection buffers little in the kernel.
func (e *s3Leaks) stall(r *s3Request, sent int) net.Conn {
	e.t.Helper()
	nc, err := net.Dial("tcp", shared.endpoint)
	require.NoError(e.t, err)
	require.NoError(e.t, nc.(*net.TCPConn).SetReadBuffer(64<<10))
	var head bytes.Buffer
	req := e.request(r)
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.method, req.URL.RequestURI(), req.URL.Host, len(r.body))
	require.NoError(e.t, req.Header.Write(&head))
	head.WriteString("\r\n" + r.body[:sent])
	_, err = nc.Write(head.Bytes())
	require.NoError(e.t, err)
	return nc
}
