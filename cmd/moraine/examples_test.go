package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestEveryCommandHasAnExample: each runnable command has an example. The example uses
// flags and a number of arguments that the command accepts.
func TestEveryCommandHasAnExample(t *testing.T) {
	root := func() *cobra.Command { return newRootCommand((&cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})) }
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "completion" || c.Name() == "help" {
			return
		}
		if !c.HasSubCommands() {
			require.NotEmpty(t, c.Example, c.CommandPath())
		}
		for _, line := range examplesOf(c) {
			words := wordsOf(line)
			require.Equal(t, "moraine", words[0], line)
			cmd, rest, err := root().Find(words[1:])
			require.NoError(t, err, line)
			require.NoError(t, cmd.ParseFlags(rest), line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root())
}

// examplesOf returns the command lines of an example, without the programs after a pipe,
// loops and comments.
func examplesOf(c *cobra.Command) []string {
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
		line, _, _ = strings.Cut(line, " | ")
		line, _, _ = strings.Cut(line, " && ")
		line, _, _ = strings.Cut(line, " ...") // and so on
		line, _, _ = strings.Cut(line, " #")
		line, _, _ = strings.Cut(line, " >")
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "moraine ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// wordsOf splits a line at spaces outside quotes.
func wordsOf(line string) []string {
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
	return slices.Clip(words)
}
