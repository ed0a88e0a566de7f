package erasure_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

// The code is the one in docs/formats/stripe.md, computed here from that
// description alone.
func TestCodeIsAsDescribed(t *testing.T) {
	for _, scheme := range []moraine.Scheme{{K: 2, M: 1}, {K: 4, M: 2}, {K: 5, M: 1}, {K: 8, M: 3}, {K: 10, M: 4}} {
		_, all := encoded(t, scheme, 64, 9)
		k := int(scheme.K)
		g := generator(k, scheme.Chunks())
		for j := k; j < scheme.Chunks(); j++ {
			want := make([]byte, 64)
			for i := range k {
				for b := range want {
					want[b] ^= mul(g[j][i], all[i][b])
				}
			}
			require.Equal(t, want, all[j], "%s, chunk %d", scheme, j)
		}
	}
}

// mul multiplies in GF(2^8) modulo x^8+x^4+x^3+x^2+1.
func mul(a, b byte) byte {
	var p byte
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			p ^= a
		}
		carry := a & 0x80
		a <<= 1
		if carry != 0 {
			a ^= 0x1d
		}
	}
	return p
}

func power(a byte, n int) byte {
	p := byte(1)
	for range n {
		p = mul(p, a)
	}
	return p
}

func inverse(a byte) byte { return power(a, 254) }

// generator returns the rows x k Vandermonde matrix times the inverse of its top.
func generator(k, rows int) [][]byte {
	v := make([][]byte, rows)
	for r := range v {
		v[r] = make([]byte, k)
		for c := range v[r] {
			v[r][c] = power(byte(r), c)
		}
	}
	inv := invert(v[:k])
	g := make([][]byte, rows)
	for r := range g {
		g[r] = make([]byte, k)
		for c := range k {
			for i := range k {
				g[r][c] ^= mul(v[r][i], inv[i][c])
			}
		}
	}
	return g
}

// invert is Gauss-Jordan elimination.
func invert(m [][]byte) [][]byte {
	n := len(m)
	w := make([][]byte, n)
	for r := range w {
		w[r] = append(append([]byte{}, m[r]...), make([]byte, n)...)
		w[r][n+r] = 1
	}
	for c := range n {
		at := c
		for w[at][c] == 0 {
			at++
		}
		w[c], w[at] = w[at], w[c]
		f := inverse(w[c][c])
		for i := range w[c] {
			w[c][i] = mul(w[c][i], f)
		}
		for r := range n {
			if f := w[r][c]; r != c && f != 0 {
				for i := range w[r] {
					w[r][i] ^= mul(f, w[c][i])
				}
			}
		}
	}
	for r := range w {
		w[r] = w[r][n:]
	}
	return w
}
