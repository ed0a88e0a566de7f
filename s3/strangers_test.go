package s3_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/s3"
)

// TestStrangersHoldNoPlaces has clients without a key open more connections than
// the endpoint accepts: a client with the key is still served.
func TestStrangersHoldNoPlaces(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "strangers")
	put(t, c, b, "key", []byte("bytes"), putOptions(""))
	for range 2 * maxConnections {
		nc, err := net.Dial("tcp", shared.endpoint)
		require.NoError(t, err)
		defer nc.Close() //nolint:errcheck // the test is over
	}
	r := s3Request{method: "GET"}
	req := signed(r.request(t, "/"+b+"/key"), accessKey, secretKey, s3.DefaultRegion)
	req.Close = true
	got := exchange(t, req)
	require.Equal(t, http.StatusOK, got.status, got.text)
	require.Contains(t, got.text, "bytes")
}
