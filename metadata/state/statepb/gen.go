// Package statepb holds the messages of the replicated log: what the leader
// proposes and every replica applies. See docs/formats/log-entry.md.
package statepb

//go:generate protoc -I. -I../../../transport/wire --moraine_out=. --moraine_opt=paths=source_relative,Mmetadata.proto=github.com/morainefs/moraine/transport/wire,Mcommon.proto=github.com/morainefs/moraine/transport/wire,Mhello.proto=github.com/morainefs/moraine/transport/wire,Mobject.proto=github.com/morainefs/moraine/transport/wire,Mcheckpoint.proto=github.com/morainefs/moraine/transport/wire command.proto
