package transport_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func goldenHeader() transport.Header {
	return transport.Header{Class: transport.Bulk, Kind: transport.KindPutChunk, Flags: 0, Deadline: 30000, ID: 0x0102030405060708,
		Trace: moraine.UUID{0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, Incarnation: 1, PayloadLen: 4096}
}

// This build still reads the first frame version ever sent, and still writes it the
// same way.
func TestGoldenFrame(t *testing.T) {
	const path = "testdata/frame-v1.hex"
	frame := transport.EncodeFrame(goldenHeader(), &wire.PutChunk{Stripe: 7, Index: 2, Device: 3, Version: 1, Crc: 0xdeadbeef, Level: 3})
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(hex.Dump(frame)), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), hex.Dump(frame))
	h, rest, err := transport.DecodeHeader(frame)
	require.NoError(t, err)
	expect := goldenHeader()
	expect.MessageLen, expect.MessageCRC = uint32(len(rest)), crc.Sum(rest)
	require.Empty(t, cmp.Diff(expect, h))
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := transport.Header{
			Class: transport.Class(rapid.Uint8().Draw(t, "class")), Kind: transport.Kind(rapid.Uint16().Draw(t, "kind")),
			Flags: rapid.Uint16().Draw(t, "flags"), Deadline: rapid.Uint32().Draw(t, "deadline"), ID: rapid.Uint64().Draw(t, "id"),
			Incarnation: rapid.Uint64().Draw(t, "incarnation"), MessageLen: rapid.Uint32Range(0, transport.MaxMessage).Draw(t, "message"),
			PayloadLen: rapid.Uint32Range(0, transport.MaxPayload).Draw(t, "payload"), MessageCRC: rapid.Uint32().Draw(t, "crc"),
		}
		copy(h.Trace[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace"))
		got, rest, err := transport.DecodeHeader(transport.EncodeHeader(h))
		if err != nil || got != h || len(rest) != 0 {
			t.Fatalf("%+v came back as %+v, %d bytes left, %v", h, got, len(rest), err)
		}
	})
}

// The CRC protects every single bit of a header.
func TestHeaderBitFlips(t *testing.T) {
	good := transport.EncodeHeader(goldenHeader())
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		_, _, err := transport.DecodeHeader(append(bad, make([]byte, 256)...))
		require.ErrorIs(t, err, moraine.Corrupt, "bit %d", i)
	}
}

func TestHeaderBounds(t *testing.T) {
	for name, change := range map[string]func(*transport.Header){
		"message": func(h *transport.Header) { h.MessageLen = transport.MaxMessage + 1 },
		"payload": func(h *transport.Header) { h.PayloadLen = transport.MaxPayload + 1 },
	} {
		h := goldenHeader()
		change(&h)
		_, _, err := transport.DecodeHeader(transport.EncodeHeader(h))
		require.ErrorIs(t, err, moraine.Corrupt, name)
	}
}

// A later version's header may be longer: known fields are read, the rest is
// ignored.
func TestLongerHeader(t *testing.T) {
	p := transport.EncodeHeader(goldenHeader())
	longer := append(bytes.Clone(p[:60]), make([]byte, 12)...)
	longer[6] = 76
	sum := crc.Sum(longer)
	longer = append(longer, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	h, rest, err := transport.DecodeHeader(append(longer, "after"...))
	require.NoError(t, err)
	require.Equal(t, goldenHeader(), h)
	require.Equal(t, "after", string(rest))
}

// FuzzFrame reads arbitrary bytes as a connection does. It must not panic or read
// out of bounds, and an accepted header encodes to the same bytes.
func FuzzFrame(f *testing.F) {
	frame := transport.EncodeFrame(goldenHeader(), &wire.PutChunk{Stripe: 7})
	f.Add(append(frame, make([]byte, 4096)...))
	f.Add(frame[:63])
	f.Add(transport.EncodeFrame(transport.Header{Class: transport.Control, Kind: transport.KindPing}, nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		dst := make([]byte, 8192)
		if _, err := transport.ReadFrames(p, dst); err == nil {
			t.Fatal("a stream without end")
		}
		h, _, err := transport.DecodeHeader(p)
		if err != nil || p[6] != transport.HeaderLen || p[7] != 0 {
			return
		}
		if !bytes.Equal(transport.EncodeHeader(h), p[:transport.HeaderLen]) {
			t.Fatalf("%x decodes to %+v", p[:transport.HeaderLen], h)
		}
	})
}

// FuzzHello reads arbitrary bytes as the first bytes of a connection.
func FuzzHello(f *testing.F) {
	hello := &wire.Hello{MinVersion: 1, MaxVersion: 1, Cluster: cluster[:], Node: "n1", Class: 2, Nonce: make([]byte, 16)}
	f.Add(transport.EncodeFrame(transport.Header{Class: transport.Control, Kind: transport.KindHello, ID: 1}, hello))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0x16, 3, 1, 2, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		h := new(wire.Hello)
		if err := transport.ReadHello(p, h); err == nil && len(h.Token) > len(p) {
			t.Fatal("more came out than went in")
		}
	})
}
