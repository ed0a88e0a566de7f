package s3_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client whose large body is refused at its headers reads the reason: its
// connection is not reset.
func TestRefusedBodiesGetTheirAnswer(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "refused-bodies")
	stranger := dial(t, "nobody", "wrong/secret+key")
	data := bytesOf(seed(t), 24<<20)
	for range 8 {
		status, _ := putAt(t, c, b, "level", "object", data, nil)
		require.Equal(t, http.StatusBadRequest, status)
		status, _ = putAt(t, stranger, b, "key", "memory", data, nil)
		require.Equal(t, http.StatusForbidden, status)
	}
}
