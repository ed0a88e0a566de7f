// Package wire holds the protobuf messages that clients, metadata servers and
// chunkservers exchange. The .proto files are the reference; fields are
// append-only. One path through it: MetaRequest carries an operation in its oneof
// "op", which Op (op.go) finds.
package wire

//go:generate protoc --moraine_out=. --moraine_opt=paths=source_relative common.proto hello.proto chunk.proto checkpoint.proto object.proto operation.proto metadata.proto
