// Protocgen is protoc-gen-moraine, the plugin with which protoc makes the Go code of the .proto
// files. It is protoc-gen-go with one difference: no string is checked to be UTF-8. Names of files,
// targets of symbolic links and names of attributes are any bytes, and a message that quotes one in
// an error text must not fail either.
//
// Strings of proto3 are always checked. Editions can turn the check off, but Debian's protoc does
// not read them. So the files say proto3, and the plugin rewrites their descriptors to edition 2023
// with the same meaning and no check. A reader in another language declares such fields as bytes:
// the encoding is the same.
//
// One path through it: make generate builds it, protoc runs it with the parsed files on its standard
// input, and it answers the generated files on its standard output.
package main

import (
	"fmt"
	"io"
	"os"

	gengo "google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := generate(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "protoc-gen-moraine:", err)
		os.Exit(1)
	}
}

func generate(in io.Reader, out io.Writer) error {
	b, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	req := &pluginpb.CodeGeneratorRequest{}
	if err := proto.Unmarshal(b, req); err != nil {
		return err
	}
	for _, f := range req.GetProtoFile() {
		if f.GetSyntax() == "proto3" {
			toEdition(f)
		}
	}
	gen, err := protogen.Options{}.New(req)
	if err != nil {
		return err
	}
	for _, f := range gen.Files {
		if f.Generate {
			gengo.GenerateFile(gen, f)
		}
	}
	gen.SupportedFeatures = gengo.SupportedFeatures
	gen.SupportedEditionsMinimum, gen.SupportedEditionsMaximum = gengo.SupportedEditionsMinimum, gengo.SupportedEditionsMaximum
	if b, err = proto.Marshal(gen.Response()); err == nil {
		_, err = out.Write(b)
	}
	return err
}

// toEdition rewrites a proto3 file to edition 2023 without the check of strings.
func toEdition(f *descriptorpb.FileDescriptorProto) {
	f.Syntax, f.Edition = new("editions"), descriptorpb.Edition_EDITION_2023.Enum()
	if f.Options == nil {
		f.Options = &descriptorpb.FileOptions{}
	}
	f.Options.Features = &descriptorpb.FeatureSet{
		FieldPresence:  descriptorpb.FeatureSet_IMPLICIT.Enum(),
		Utf8Validation: descriptorpb.FeatureSet_NONE.Enum(),
	}
	for _, m := range f.GetMessageType() {
		messageToEdition(m)
	}
}

func messageToEdition(m *descriptorpb.DescriptorProto) {
	for _, nested := range m.GetNestedType() {
		messageToEdition(nested)
	}
	for _, field := range m.GetField() {
		if field.GetProto3Optional() {
			optionalToEdition(m, field)
		}
	}
}

// optionalToEdition makes an optional field of proto3 one with explicit presence. Proto3 puts it
// into a oneof of its own, which is the last of the message.
func optionalToEdition(m *descriptorpb.DescriptorProto, field *descriptorpb.FieldDescriptorProto) {
	own := int(field.GetOneofIndex())
	m.OneofDecl = m.OneofDecl[:min(own, len(m.OneofDecl))]
	field.Proto3Optional, field.OneofIndex = nil, nil
	if field.Options == nil {
		field.Options = &descriptorpb.FieldOptions{}
	}
	field.Options.Features = &descriptorpb.FeatureSet{FieldPresence: descriptorpb.FeatureSet_EXPLICIT.Enum()}
}
