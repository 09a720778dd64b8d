module tidegate.example/go

go 1.23

require github.com/dunglas/httpsfv v1.1.2
