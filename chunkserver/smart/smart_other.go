//go:build !linux

package smart

import "github.com/morainefs/moraine/transport/wire"

// Read reports nothing: the kernel interface is Linux's.
func Read(string) *wire.DiskHealth { return nil }
