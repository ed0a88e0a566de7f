//go:build !linux

package chunkserver

import "github.com/morainefs/moraine/transport/wire"

// diskHealth asks nobody: only Linux is known to answer.
func diskHealth(string) (*wire.DiskHealth, bool) { return nil, true }
