package transport_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"testing"
)

// BenchmarkFrameMAC measures what a keyed checksum over the header and the message
// of a frame would cost, per frame and end. A request has four of them: two frames
// at two ends each. docs/operations/settings.md says why frames have none.
func BenchmarkFrameMAC(b *testing.B) {
	key := make([]byte, 32)
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		b.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	var seq uint64
	var nonce [12]byte
	var sum [sha256.Size]byte
	out := make([]byte, 0, 64)
	newHMAC := func() hash.Hash { return hmac.New(sha256.New, key) }
	h := newHMAC()
	for _, size := range []int{64 + 40, 64 + 120, 64 + 400} {
		frame := make([]byte, size)
		for name, mac := range map[string]func(){
			"AES-GMAC": func() {
				seq++
				binary.LittleEndian.PutUint64(nonce[:], seq)
				out = gcm.Seal(out[:0], nonce[:], nil, frame)
			},
			"AES-GMAC/verify": func() {
				binary.LittleEndian.PutUint64(nonce[:], seq)
				_, _ = gcm.Open(out[16:16], nonce[:], out[:16], frame)
			},
			"HMAC-SHA256": func() {
				h.Reset()
				h.Write(frame)
				h.Sum(sum[:0])
			},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					mac()
				}
			})
		}
	}
}
