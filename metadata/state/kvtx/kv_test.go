package kvtx

import (
	"bytes"
	"testing"
)

func TestPrefixEnd(t *testing.T) {
	if end := PrefixEnd([]byte{0, 0xff, 0xff}); !bytes.Equal(end, []byte{1}) {
		t.Errorf("prefixEnd: %x", end)
	}
	if end := PrefixEnd([]byte{0xff}); end != nil {
		t.Errorf("prefixEnd of the last prefix: %x", end)
	}
}
