//go:build !amd64

package crc

import "hash/crc32"

func update(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }
