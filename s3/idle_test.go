package s3_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/s3"
)

// TestSilentConnectionsAreEnded: a connection that sends nothing, or only a part of
// the headers, is ended. A body that takes longer than the header timeout is not
// cut.
func TestSilentConnectionsAreEnded(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "silence")
	var silent []net.Conn
	for _, said := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nX-More: "} {
		nc, err := net.Dial("tcp", shared.endpoint)
		require.NoError(t, err)
		defer nc.Close()
		_, err = nc.Write([]byte(said))
		require.NoError(t, err)
		silent = append(silent, nc)
	}
	const parts = 8
	slow := &slowBody{part: strings.Repeat("x", 1000), left: parts, pause: headerTimeout / (parts - 2)}
	r := s3Request{method: "PUT"}
	req := signed(r.request(t, "/"+b+"/slow"), accessKey, secretKey, s3.DefaultRegion)
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(slow), int64(parts*len(slow.part)), nil
	began := time.Now()
	got := exchange(t, req)
	require.Equal(t, http.StatusOK, got.status, got.text)
	require.Greater(t, time.Since(began), headerTimeout)
	for n, nc := range silent {
		require.NoError(t, nc.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(nc)
		var late net.Error
		require.False(t, err != nil && errors.As(err, &late) && late.Timeout(), fmt.Sprint(n))
	}
}

// slowBody is a body that arrives in parts.
type slowBody struct {
	part  string
	left  int
	pause time.Duration
}

// Read implements io.Reader.
func (s *slowBody) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	s.left--
	return copy(p, s.part), nil
}
