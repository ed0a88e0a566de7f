#!/usr/bin/env bash
# Compares the generated Go code with what protoc makes of the .proto files now. It runs the
# protoc lines of the go:generate comments into a temporary directory. Without protoc it says so
# and succeeds: the code that is compiled is in the tree. Run it at the top of the tree.
set -euo pipefail
go=${GO:-go}
if ! command -v protoc >/dev/null; then
	echo 'generated code: not checked, since protoc is not installed (Debian: protobuf-compiler)' >&2
	exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$go" build -o "$tmp/bin/protoc-gen-moraine" ./internal/protocgen
export PATH="$tmp/bin:$PATH"
checked=0 stale=0
while IFS=: read -r file line; do
	folder=$(dirname "$file")
	mkdir -p "$tmp/$folder"
	(cd "$folder" && eval "${line/--moraine_out=./--moraine_out=\"$tmp/$folder\"}")
	for new in "$tmp/$folder"/*.pb.go; do
		old=$folder/$(basename "$new")
		checked=$((checked + 1))
		# The line with protoc's own version may differ.
		if ! diff -q -I '^// 	protoc  *v' "$old" "$new" >/dev/null; then
			stale=1
			echo "$old is not what the .proto files give: run make generate" >&2
			echo "  it was made with protoc $(sed -n 's,^// 	protoc  *,,p' "$old"), this one is $(protoc --version)" >&2
		fi
	done
done < <(git grep '^//go:generate protoc ' -- '*.go' | sed 's,:[^:]*//go:generate ,:,')
tracked=$(git ls-files '*.pb.go' | wc -l)
if [ "$checked" != "$tracked" ]; then
	echo "generated code: the go:generate lines make $checked files, and $tracked are in the tree" >&2
	exit 1
fi
exit $stale
